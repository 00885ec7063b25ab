"""The ONNX graph that turns photos into the images that a network takes, with the same numbers as Pillow.

Pillow resizes in two steps (`reducing_gap` in data/decode.py): blocks of whole pixels become their mean, until the
photo is less than four times as large as wanted; then a filter is applied to rows and to columns. Both steps round to
whole numbers. ONNX Runtime's Resize of uint8 computes the second step as Pillow does.
"""

from typing import Any

from etag.core.images import Resize

MODES = {"bilinear": "linear", "bicubic": "cubic"}
# Shares of a division by n are multiples of 2**-24, rounded down, in Pillow's `reduce`.
UNITS = 1 << 24
# A scale is rounded to float32. So that it never leads to one pixel less, it is larger by two units of the last place.
LARGER = 1 + 2**-22

SQUASHED = "wanted = Identity(square)"
SHORTER_SIDE_SCALED = """
  shorter_side = Constant<value = double {{{shorter_side}}}>()
  shorter = ReduceMin<keepdims=1>(exact_sides)
  enlargement = Div(shorter_side, shorter)
  scaled = Mul(exact_sides, enlargement)
  rounded = Round(scaled)
  whole = Cast<to=7>(rounded)
  wanted = Max(whole, square)
"""
COLORS = "levels = Cast<to=1>(center)"
# The weights of red, green and blue are Pillow's, in shares of 65536. Gray photos count as red, green and blue.
GRAY = """
  luma = Constant<value = int32[1,3,1,1] {19595, 38470, 7471}>()
  share = Constant<value = int32 {65536}>()
  half_share = Constant<value = int32 {32768}>()
  colors = Cast<to=6>(center)
  weighted = Mul(colors, luma)
  sum = ReduceSum<keepdims=1>(weighted, one)
  raised = Add(sum, half_share)
  gray = Div(raised, share)
  levels = Cast<to=1>(gray)
"""
GRAPH = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
preprocess (uint8[batch,height,width,{depth}] photos) => (float[batch,{channels},{side},{side}] resized)
<
  int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] rest = {{-1}}, int64 origin = {{0}},
  int64[2] nothing = {{0, 0}}, int64[2] axes = {{1, 2}}, int64[2] map_axes = {{2, 3}}, float[2] unchanged = {{1, 1}},
  int64[2] square = {{{side}, {side}}}, double units = {{{units}}}, double larger = {{{larger}}}, float white = {{255}}
>
{{
  photo_count = Shape<start=0, end=1>(photos)
  sides = Shape<start=1, end=3>(photos)
  color_count = Shape<start=3>(photos)
  exact_sides = Cast<to=11>(sides)

  # height and width after resizing, before the center is cut out
  {wanted}

  # each block of so many rows and columns becomes one pixel; the last ones may be incomplete
  twice = Mul(wanted, two)
  fitting = Div(sides, twice)
  block = Max(fitting, one)
  before_last = Sub(sides, one)
  last = Div(before_last, block)
  blocks = Add(last, one)
  filled = Mul(blocks, block)
  missing = Sub(filled, sides)
  block_rows, block_columns = Split<num_outputs=2>(block)
  rows, columns = Split<num_outputs=2>(blocks)
  height, width = Split<num_outputs=2>(sides)

  # the sums of the blocks: float32 holds them exactly
  padding = Concat<axis=0>(nothing, missing)
  padded = Pad(photos, padding, , axes)
  padded_width = Mul(columns, block_columns)
  row_size = Mul(padded_width, color_count)
  by_rows = Concat<axis=0>(rest, block_rows, row_size)
  grouped_rows = Reshape(padded, by_rows)
  numbers = Cast<to=1>(grouped_rows)
  row_sums = ReduceSum<keepdims=0>(numbers, one)
  by_color = Concat<axis=0>(photo_count, rows, padded_width, color_count)
  separate = Reshape(row_sums, by_color)
  planes = Transpose<perm=[0, 3, 1, 2]>(separate)
  by_columns = Concat<axis=0>(rest, block_columns)
  grouped_columns = Reshape(planes, by_columns)
  ones_shape = Concat<axis=0>(block_columns, one)
  ones = ConstantOfShape<value = float[1] {{1}}>(ones_shape)
  block_sums = MatMul(grouped_columns, ones)
  by_block = Concat<axis=0>(photo_count, color_count, rows, columns)
  sums = Reshape(block_sums, by_block)
  exact_sums = Cast<to=11>(sums)

  # how many pixels each block has
  row_step = Squeeze(block_rows)
  row_end = Squeeze(height)
  row_starts = Range(origin, row_end, row_step)
  rows_left = Sub(height, row_starts)
  row_counts = Min(rows_left, block_rows)
  column_step = Squeeze(block_columns)
  column_end = Squeeze(width)
  column_starts = Range(origin, column_end, column_step)
  columns_left = Sub(width, column_starts)
  column_counts = Min(columns_left, block_columns)
  row_counts_upright = Unsqueeze(row_counts, one)
  counts = Mul(row_counts_upright, column_counts)

  # their means, rounded as Pillow does it
  half_counts = Div(counts, two)
  halves = Cast<to=11>(half_counts)
  exact_counts = Cast<to=11>(counts)
  unit_shares = Div(units, exact_counts)
  shares = Floor(unit_shares)
  added = Add(exact_sums, halves)
  shared = Mul(added, shares)
  divided = Div(shared, units)
  means = Floor(divided)
  reduced = Cast<to=2>(means)

  # what is left is resized with a filter
  wanted_pixels = Mul(wanted, block)
  wanted_exactly = Cast<to=11>(wanted_pixels)
  ratios = Div(wanted_exactly, exact_sides)
  safe_ratios = Mul(ratios, larger)
  side_scales = Cast<to=1>(safe_ratios)
  scales = Concat<axis=0>(unchanged, side_scales)
  filtered = Resize<mode="{mode}", antialias=1, exclude_outside=1, cubic_coeff_a=-0.5>(reduced, , scales)
  spare = Sub(wanted, square)
  start = Div(spare, two)
  end = Add(start, square)
  center = Slice(filtered, start, end, map_axes)

  {levels}
  resized = Div(levels, white)
}}
"""


def photo_graph(resize: Resize, channels: int, ir_version: int, opset: int) -> Any:
    """A model of ONNX from uint8 photos (batch, height, width, colors) to float32 images (batch, channels, side, side)
    from 0 to 1. For one channel the photos may have one color (gray) or three (RGB)."""
    from onnx import parser

    text = GRAPH.format(
        ir_version=ir_version,
        opset=opset,
        depth="colors" if channels == 1 else channels,
        channels=channels,
        side=resize.side,
        units=UNITS,
        larger=LARGER,
        mode=MODES[resize.interpolation],
        wanted=SQUASHED if resize.crop is None else SHORTER_SIDE_SCALED.format(shorter_side=resize.shorter_side),
        levels=GRAY if channels == 1 else COLORS,
    )
    return parser.parse_model(text)
