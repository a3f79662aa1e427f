"""Sample orders bit for bit as MosaicML Streaming makes them, so that a run begun there goes on here.

These orders need the whole epoch as an array, in contrast to the native one. Nothing here reads a file: who
keeps the array, and shares it between the processes of a node, is decided by the caller of `MosaicPlan`.
"""
