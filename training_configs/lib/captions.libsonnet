import 'beem/captions.libsonnet'
