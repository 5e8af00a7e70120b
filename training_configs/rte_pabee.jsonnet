// PABEE on RTE: joint training, and patience.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').pabee
