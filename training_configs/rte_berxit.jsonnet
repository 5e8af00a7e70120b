// BERxiT on RTE: alternating training, and a learned guess of where exits err.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').berxit
