// ElasticBERT's training on RTE: gradient equilibrium, and entropy.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').elasticbert
