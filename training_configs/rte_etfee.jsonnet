// ETFEE on RTE: fixed classifiers, an adapter an exit, and patience.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').etfee
