// Global Past-Future on RTE: exits that imitate the states to come, and entropy.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').past_future
