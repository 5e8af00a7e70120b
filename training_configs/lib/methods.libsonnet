import 'beem/methods.libsonnet'
