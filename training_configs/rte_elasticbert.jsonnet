// ElasticBERT's training on RTE: gradient equilibrium, and entropy.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').elasticbert
