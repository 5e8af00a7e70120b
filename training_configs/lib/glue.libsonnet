import 'beem/glue.libsonnet'
