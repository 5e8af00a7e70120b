// PABEE on RTE: joint training, and patience.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').pabee
