// ElasticBERT's training on RTE: gradient equilibrium, and entropy.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').elasticbert
