// BERxiT on RTE: alternating training, and a learned guess of where exits err.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').berxit
