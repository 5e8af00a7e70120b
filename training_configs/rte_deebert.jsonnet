// DeeBERT on RTE: two stages, and entropy.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').deebert
