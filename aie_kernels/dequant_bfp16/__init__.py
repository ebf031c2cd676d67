"""The dequantisation engine with weights in bfp16."""
