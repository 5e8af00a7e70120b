// HashEE on RTE: every token leaves at a depth of its own.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').hashee
