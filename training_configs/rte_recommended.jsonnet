// Branches, a scaled fork and a higher rate for heads, on the first eight layers of MPNet, on RTE.
(import 'beem/glue.libsonnet').task('rte', model='microsoft/mpnet-base', batch_size=32, epochs=6, lr=5e-5)
+ (import 'beem/methods.libsonnet').recommended()
