// PCEE-BERT on RTE: PABEE's training, and patience counted in confident exits.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').pcee
