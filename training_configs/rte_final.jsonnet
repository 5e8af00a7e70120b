// The network without exits on RTE.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').final
