// PCEE-BERT on RTE: PABEE's training, and patience counted in confident exits.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').pcee
