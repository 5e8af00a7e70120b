// The first nine layers of the network, trained as a network of their own, on RTE.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').reduced(9)
