// PABEE on RTE: joint training, and patience.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').pabee
