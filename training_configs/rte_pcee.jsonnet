// PCEE-BERT on RTE: PABEE's training, and patience counted in confident exits.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').pcee
