// BERxiT on RTE: alternating training, and a learned guess of where exits err.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').berxit
