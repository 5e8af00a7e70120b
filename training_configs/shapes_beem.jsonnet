// BEEM-A on generated scenes of shapes: trains in minutes on a CPU, and downloads nothing.
import 'captions/shapes_beem.jsonnet'
