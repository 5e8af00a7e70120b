// Zero Time Waste on RTE: cascaded heads on a frozen network, and their ensembles.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').ztw
