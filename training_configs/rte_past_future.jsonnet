// Global Past-Future on RTE: exits that imitate the states to come, and entropy.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').past_future
