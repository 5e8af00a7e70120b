// FastBERT on RTE: self-distillation into small attention heads, and normalized entropy.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').fastbert
