//! Sizes of resized images, and the input positions and weights of each output position.

use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::Shape;

/// The mapping from output positions to input positions.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// True if the centres of the corner pixels of the input and of the output have the same position.
    align_corners: bool,
    /// True if a pixel's position is the centre of its area; false if it is the corner.
    centers: bool,
}

impl Grid {
    /// Returns the grid of a gradient op, without checking that its attributes exclude each other, like in TensorFlow.
    pub fn of_grad(init: &KernelInit<'_>) -> Result<Grid> {
        Ok(Grid { align_corners: init.attr("align_corners")?, centers: init.attr("half_pixel_centers")? })
    }

    /// Reads the attributes `align_corners` and `half_pixel_centers`, which may not both be true.
    pub fn of(init: &KernelInit<'_>) -> Result<Grid> {
        let grid = Grid::of_grad(init)?;
        if grid.align_corners && grid.centers {
            device::invalid!("If half_pixel_centers is True, align_corners must be False.");
        }
        Ok(grid)
    }

    /// Returns the grid of an op that has only the attribute `align_corners`.
    pub fn of_corners(init: &KernelInit<'_>) -> Result<Grid> {
        Ok(Grid { align_corners: init.attr("align_corners")?, centers: false })
    }

    /// Returns the distance between neighbouring output pixels in units of input pixels; `input` and `output` are the
    /// lengths of the axis in pixels.
    fn scale(self, input: usize, output: usize) -> f32 {
        if self.align_corners && output > 1 {
            (input as f32 - 1.0) / (output - 1) as f32
        } else {
            input as f32 / output as f32
        }
    }

    /// Returns the position in the input, in pixels, that corresponds to pixel `x` of the output.
    fn at(self, x: usize, scale: f32) -> f32 {
        if self.centers { (x as f32 + 0.5) * scale - 0.5 } else { x as f32 * scale }
    }
}

/// The sizes of the input and output images.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batch: usize,
    /// Rows and columns of the input images.
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub channels: usize,
}

impl Sizes {
    /// Returns the sizes of an op that resizes input 0 to the size in input 1.
    pub fn forward(ctx: &KernelContext<'_>) -> Result<Sizes> {
        let x = ctx.shape(0)?;
        let &[batch, rows, columns, channels] = x.dims() else {
            device::invalid!("input must be 4-dimensional{x}");
        };
        let output = size_input(ctx, 1)?;
        if rows == 0 || columns == 0 {
            device::invalid!("input image must be of non-zero size");
        }
        if channels == 0 {
            device::invalid!("image must have at least one channel");
        }
        Ok(Sizes { batch, input: [rows, columns], output, channels })
    }

    /// Returns the sizes of a gradient: input 0 is the gradient, input 1 the image that was resized.
    pub fn backward(ctx: &KernelContext<'_>) -> Result<Sizes> {
        let (dy, x) = (ctx.shape(0)?, ctx.shape(1)?);
        let &[batch, rows, columns, channels] = x.dims() else {
            device::invalid!("original_image must be 4-dimensional{x}");
        };
        let &[given, output_rows, output_columns, given_channels] = dy.dims() else {
            device::invalid!("input_grad must be 4-dimensional{dy}");
        };
        if given != batch || given_channels != channels {
            device::invalid!("grads of shape {dy} do not fit an image of shape {x}");
        }
        let (input, output) = ([rows, columns], [output_rows, output_columns]);
        if [input, output].concat().contains(&0) {
            device::invalid!("images must be of non-zero size");
        }
        Ok(Sizes { batch, input, output, channels })
    }

    /// Returns the shape of the resized images.
    pub fn output_shape(&self) -> Result<Shape> {
        Ok(Shape::new(&[self.batch, self.output[0], self.output[1], self.channels])?)
    }

    /// Returns the shape of the images before resizing.
    pub fn input_shape(&self) -> Result<Shape> {
        Ok(Shape::new(&[self.batch, self.input[0], self.input[1], self.channels])?)
    }

    pub(crate) fn input_line(&self) -> usize {
        self.input[1] * self.channels
    }

    pub(crate) fn output_line(&self) -> usize {
        self.output[1] * self.channels
    }
}

/// Returns the rows and columns given by input `i`.
pub(crate) fn size_input(ctx: &KernelContext<'_>, i: usize) -> Result<[usize; 2]> {
    let size = ctx.input(i)?;
    if size.shape().rank() != 1 {
        device::invalid!("shape_t must be 1-dimensional{}", size.shape());
    }
    let &[rows, columns] = size.values::<i32>()? else {
        device::invalid!("shape_t must have two elements{}", size.shape());
    };
    let positive = |v: i32| {
        let size = usize::try_from(v).ok().filter(|&v| v > 0);
        size.ok_or_else(|| Error::invalid("output dimensions must be positive"))
    };
    Ok([positive(rows)?, positive(columns)?])
}

/// Returns, for each output pixel of an axis, the input pixels that it covers, and the covered length of each input
/// pixel; at an edge, an input pixel may occur twice.
pub fn area_shares(grid: Grid, input: usize, output: usize) -> Vec<Vec<(usize, f32)>> {
    let scale = grid.scale(input, output);
    let place = |i: usize| {
        // With aligned corners, an input with a single pixel has scale 0, and every output pixel copies the input
        // pixel.
        if scale == 0.0 {
            return vec![(0, 1.0)];
        }
        let (start, end) = (i as f32 * scale, (i + 1) as f32 * scale);
        let share = |v: i64| {
            let at = v as f32;
            let covered = match (at < start, at + 1.0 > end) {
                (true, true) => scale,
                (true, false) => at + 1.0 - start,
                (false, true) => end - at,
                (false, false) => 1.0,
            };
            (v.clamp(0, input as i64 - 1) as usize, covered)
        };
        (start.floor() as i64..end.ceil() as i64).map(share).collect()
    };
    (0..output).map(place).collect()
}

/// Returns the sum of the covered lengths of the input pixels that an output pixel covers, which is the same for each
/// output pixel.
pub fn area_covered(grid: Grid, input: usize, output: usize) -> f32 {
    match grid.scale(input, output) {
        0.0 => 1.0,
        scale => scale,
    }
}

/// Number of entries of the table of cubic weights per distance between two neighbouring pixels.
const STEPS: usize = 1024;

/// The four input pixels from which an output pixel is interpolated along an axis, and their weights.
#[derive(Clone, Copy, Debug)]
pub struct CubicTaps {
    pub at: [usize; 4],
    pub weights: [f32; 4],
}

/// Returns, for each `i` up to `STEPS`, the weights of Keys' kernel with parameter `a` at distances `i / STEPS` and `1
/// + i / STEPS`.
fn table(a: f32) -> Vec<[f32; 2]> {
    let weights = |i| {
        let x = i as f32 / STEPS as f32;
        let near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
        let x = x + 1.0;
        [near, ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a]
    };
    (0..=STEPS).map(weights).collect()
}

/// Returns the input positions and weights of each output position along an axis, for `ResizeBicubic`.
pub fn cubic_taps(grid: Grid, input: usize, output: usize) -> Vec<CubicTaps> {
    // The parameter of Keys' kernel is -0.5 with half-pixel centres, otherwise -0.75 like in TensorFlow's first
    // version.
    let table = table(if grid.centers { -0.5 } else { -0.75 });
    let scale = grid.scale(input, output);
    let place = |i| {
        let at = grid.at(i, scale);
        let first = at.floor();
        let step = (((at - first) * STEPS as f32).round_ties_even() as usize).min(STEPS);
        let mut weights = [table[step][1], table[step][0], table[STEPS - step][0], table[STEPS - step][1]];
        let unbounded = [-1, 0, 1, 2].map(|d| first as i64 + d);
        let bounded = unbounded.map(|p| p.clamp(0, input as i64 - 1));
        if grid.centers {
            // Pixels outside the image get weight 0, and the weights of the pixels inside are normalised.
            for ((w, p), b) in weights.iter_mut().zip(unbounded).zip(bounded) {
                *w = if p == b { *w } else { 0.0 };
            }
            let sum: f32 = weights.iter().sum();
            if sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
                weights = weights.map(|w| w * (1.0 / sum));
            }
        }
        CubicTaps { at: bounded.map(|p| p as usize), weights }
    };
    (0..output).map(place).collect()
}

/// The two input pixels nearest to an output pixel along an axis, and the output pixel's distance from the lower one in
/// input pixels.
#[derive(Clone, Copy, Debug)]
pub struct LinearTaps {
    pub lower: usize,
    pub upper: usize,
    pub part: f32,
}

/// Returns the two input positions of each output position along an axis, for `ResizeBilinear`.
pub fn linear_taps(grid: Grid, input: usize, output: usize) -> Vec<LinearTaps> {
    let scale = grid.scale(input, output);
    let place = |i| {
        let at = grid.at(i, scale);
        let upper = (at.ceil().max(0.0) as usize).min(input - 1);
        LinearTaps { lower: (at.floor().max(0.0) as usize).min(upper), upper, part: at - at.floor() }
    };
    (0..output).map(place).collect()
}

/// Returns, for each output pixel along an axis, the index of the input pixel that it copies.
pub fn nearest(grid: Grid, input: usize, output: usize) -> Vec<usize> {
    let scale = grid.scale(input, output);
    let place = |i: usize| {
        // The half pixel that is added before scaling is not subtracted afterwards, unlike in `ResizeBilinear` and
        // `ResizeBicubic`.
        let at = if grid.centers { (i as f32 + 0.5) * scale } else { i as f32 * scale };
        let at = if grid.align_corners { at.round() } else { at.floor() };
        (at.max(0.0) as usize).min(input.saturating_sub(1))
    };
    (0..output).map(place).collect()
}

/// Returns the sizes of the gradient: input 0 is the gradient, input 1 the size of the image that was resized.
pub fn back_sizes(ctx: &KernelContext<'_>) -> Result<Sizes> {
    let grads = ctx.shape(0)?;
    let &[batch, rows, columns, channels] = grads.dims() else {
        device::invalid!("input must be 4-dimensional{grads}");
    };
    Ok(Sizes { batch, input: size_input(ctx, 1)?, output: [rows, columns], channels })
}
