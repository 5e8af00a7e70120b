// DeeBERT on RTE: two stages, and entropy.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').deebert
