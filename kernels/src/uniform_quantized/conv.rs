//! UniformQuantizedConvolution and UniformQuantizedConvolutionHybrid: convolutions over any number of spatial axes, in
//! any order of axes. Sums are accumulated in floats.

use super::dot::Output;
use super::dynamic::Dynamic;
use super::scales::{Scaling, check_product, of_factor};
use crate::numeric::scratch::check_scratch;
use crate::quantized::level::{build, levels};
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};

/// The attributes of a convolution.
pub(super) struct Convolution {
    strides: Vec<i64>,
    padding: String,
    explicit: Vec<i64>,
    lhs_dilation: Vec<i64>,
    rhs_dilation: Vec<i64>,
    batch_groups: usize,
    feature_groups: usize,
    /// The order of the axes; `None` for batch and features first.
    axes: Option<Axes>,
}

/// The positions of the axes of the images, of the filter, and of the result, each as two axes and the spatial ones: the
/// batch and the features, for the filter the output and the input features.
#[derive(Clone, Default, Debug, PartialEq)]
struct Axes {
    lhs: Order,
    rhs: Order,
    out: Order,
}

#[derive(Clone, Default, Debug, PartialEq)]
struct Order {
    first: usize,
    second: usize,
    spatial: Vec<usize>,
}

impl Order {
    fn leading(rank: usize) -> Order {
        Order { first: 0, second: 1, spatial: (2..rank).collect() }
    }

    /// Checks that the axes are those of a tensor of this rank, each once.
    fn check(&self, rank: usize) -> Result<()> {
        let mut axes: Vec<usize> =
            [self.first, self.second].into_iter().chain(self.spatial.clone()).collect();
        axes.sort_unstable();
        if axes != (0..rank).collect::<Vec<_>>() {
            invalid!("dimension_numbers must list each axis of a tensor of rank {rank} once");
        }
        Ok(())
    }

    /// Returns the sizes of a shape in this order: those of the first two axes, and of the spatial axes.
    fn sizes(&self, shape: &[usize]) -> (usize, usize, Vec<usize>) {
        (shape[self.first], shape[self.second], self.spatial.iter().map(|&axis| shape[axis]).collect())
    }
}

impl Axes {
    /// Parses a serialized message `UniformQuantizedConvolutionDimensionNumbersAttr`: fields 1 to 3 are the axes of the
    /// images (batch, features, spatial), 4 to 6 those of the filter (input features, output features, spatial), and 7
    /// to 9 those of the result.
    fn parse(message: &[u8]) -> Result<Axes> {
        let mut rest = message;
        let mut axes = Axes::default();
        while !rest.is_empty() {
            let key = varint(&mut rest)?;
            let values = match key & 7 {
                0 => vec![varint(&mut rest)?],
                2 => {
                    let length = varint(&mut rest)?;
                    let Some((mut packed, after)) =
                        usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length))
                    else {
                        invalid!("Error parsing dimension_numbers: a field is longer than the message");
                    };
                    rest = after;
                    let mut values = Vec::new();
                    while !packed.is_empty() {
                        values.push(varint(&mut packed)?);
                    }
                    values
                }
                other => invalid!("Error parsing dimension_numbers: unknown type {other} of a field"),
            };
            let small = |v: u64| usize::try_from(v).ok().filter(|&v| v < 256);
            let Some(values) = values.into_iter().map(small).collect::<Option<Vec<_>>>() else {
                invalid!("dimension_numbers has an axis out of range");
            };
            let last = values.last().copied().unwrap_or_default();
            match key >> 3 {
                1 => axes.lhs.first = last,
                2 => axes.lhs.second = last,
                3 => axes.lhs.spatial.extend(values),
                4 => axes.rhs.second = last,
                5 => axes.rhs.first = last,
                6 => axes.rhs.spatial.extend(values),
                7 => axes.out.first = last,
                8 => axes.out.second = last,
                9 => axes.out.spatial.extend(values),
                _ => {}
            }
        }
        Ok(axes)
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for place in 0..10 {
        let Some((&byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(7 * place).unwrap_or_default();
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Error::invalid("Error parsing dimension_numbers: a number has no end"))
}

/// A spatial axis: sizes, and the distances of positions.
struct Spatial {
    input: usize,
    filter: usize,
    output: usize,
    stride: usize,
    before: i64,
    lhs_dilation: usize,
    rhs_dilation: usize,
}

impl Spatial {
    /// Returns the position in the input under tap `tap` of the window at position `output`; `None` in the padding and
    /// between dilated elements.
    fn at(&self, output: usize, tap: usize) -> Option<usize> {
        let place = (output * self.stride + tap * self.rhs_dilation) as i64 - self.before;
        let place = usize::try_from(place).ok()?;
        let position = place / self.lhs_dilation;
        (place.is_multiple_of(self.lhs_dilation) && position < self.input).then_some(position)
    }
}

/// The sizes of a convolution whose tensors have these shapes.
struct Plan {
    axes: Axes,
    batch: usize,
    rhs_features: usize,
    out_features: usize,
    spatial: Vec<Spatial>,
    out_shape: Shape,
}

impl Convolution {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Convolution> {
        let count = |name: &str| -> Result<usize> {
            let count: i64 = init.attr(name)?;
            match usize::try_from(count) {
                Ok(count) if count > 0 => Ok(count),
                _ => invalid!("{name} must be positive, got {count}"),
            }
        };
        let padding: String = init.attr("padding")?;
        if !["SAME", "VALID", "EXPLICIT"].contains(&padding.as_str()) {
            invalid!("padding attribute must be one of SAME, VALID and EXPLICIT, got {padding}");
        }
        let explicit: Vec<i64> = init.attr("explicit_padding")?;
        if (padding == "EXPLICIT") == explicit.is_empty() {
            invalid!("explicit_padding must be given exactly if padding is EXPLICIT");
        }
        let (batch_groups, feature_groups) = (count("batch_group_count")?, count("feature_group_count")?);
        if batch_groups > 1 && feature_groups > 1 {
            invalid!("Only one of batch_group_count and feature_group_count may be greater than 1");
        }
        let numbers: Vec<u8> = init.attr::<bytes::Bytes>("dimension_numbers")?.to_vec();
        Ok(Convolution {
            strides: init.attr("window_strides")?,
            padding,
            explicit,
            lhs_dilation: init.attr("lhs_dilation")?,
            rhs_dilation: init.attr("rhs_dilation")?,
            batch_groups,
            feature_groups,
            axes: if numbers.is_empty() { None } else { Some(Axes::parse(&numbers)?) },
        })
    }

    /// Returns the axes of the output features in the filter and in the result.
    fn feature_axes(&self) -> [usize; 2] {
        self.axes.as_ref().map_or([0, 1], |axes| [axes.rhs.first, axes.out.second])
    }

    pub(super) fn rhs_scaling(&self, init: &KernelInit<'_>) -> Result<Scaling> {
        of_factor(init, self.feature_axes()[0])
    }

    pub(super) fn scalings(&self, init: &KernelInit<'_>) -> Result<[Scaling; 3]> {
        let lhs = Scaling::of(init, "lhs_")?;
        let (rhs, out) = (self.rhs_scaling(init)?, Scaling::of(init, "output_")?);
        check_product(lhs, rhs, out, self.feature_axes()[1])?;
        Ok([lhs, rhs, out])
    }

    fn plan(&self, lhs: &Shape, rhs: &Shape) -> Result<Plan> {
        let rank = lhs.rank();
        if rank != rhs.rank() || rank < 2 {
            invalid!("lhs and rhs must have the same rank of at least 2, got {lhs} and {rhs}");
        }
        let leading =
            || Axes { lhs: Order::leading(rank), rhs: Order::leading(rank), out: Order::leading(rank) };
        let axes = self.axes.clone().unwrap_or_else(leading);
        [&axes.lhs, &axes.rhs, &axes.out].into_iter().try_for_each(|order| order.check(rank))?;
        let (batch, lhs_features, inputs) = axes.lhs.sizes(lhs);
        let (out_features, rhs_features, filters) = axes.rhs.sizes(rhs);
        if rhs_features.checked_mul(self.feature_groups) != Some(lhs_features) {
            invalid!(
                "lhs must have feature_group_count times as many features as rhs, got {lhs_features} and {rhs_features}"
            );
        }
        if !out_features.is_multiple_of(self.feature_groups)
            || !out_features.is_multiple_of(self.batch_groups)
        {
            invalid!(
                "the number of output features, {out_features}, must be a multiple of the number of groups"
            );
        }
        if !batch.is_multiple_of(self.batch_groups) {
            invalid!("the batch size, {batch}, must be a multiple of batch_group_count");
        }
        let spatial = (0..rank - 2)
            .map(|axis| self.spatial(axis, rank - 2, inputs[axis], filters[axis]))
            .collect::<Result<Vec<_>>>()?;
        let mut dims = vec![0; rank];
        (dims[axes.out.first], dims[axes.out.second]) = (batch / self.batch_groups, out_features);
        axes.out.spatial.iter().zip(&spatial).for_each(|(&axis, spatial)| dims[axis] = spatial.output);
        let out_shape = Shape::new(&dims)?;
        Ok(Plan { axes, batch, rhs_features, out_features, spatial, out_shape })
    }

    fn spatial(&self, axis: usize, count: usize, input: usize, filter: usize) -> Result<Spatial> {
        let factor = |name: &str, values: &[i64]| -> Result<usize> {
            if values.is_empty() {
                return Ok(1);
            }
            if values.len() != count {
                invalid!("Size of {name} attribute must be {count}, got {}", values.len());
            }
            match usize::try_from(values[axis]) {
                Ok(value) if value > 0 && value <= i32::MAX as usize => Ok(value),
                _ => invalid!("All elements of {name} must be positive, got {}", values[axis]),
            }
        };
        let stride = factor("window_strides", &self.strides)?;
        let lhs_dilation = factor("lhs_dilation", &self.lhs_dilation)?;
        let rhs_dilation = factor("rhs_dilation", &self.rhs_dilation)?;
        let dilated = |size: usize, by: usize| -> Result<i64> {
            let spanned = i64::try_from(size.max(1) - 1).ok().and_then(|s| s.checked_mul(by as i64));
            let spanned = spanned.and_then(|s| s.checked_add(i64::from(size > 0)));
            match spanned {
                Some(spanned) if spanned <= i64::MAX / 8 => Ok(spanned),
                _ => invalid!("a dilated size is out of range"),
            }
        };
        let (images, window) = (dilated(input, lhs_dilation)?, dilated(filter, rhs_dilation)?);
        let step = stride as i64;
        let (before, after) = match self.padding.as_str() {
            "SAME" => {
                let outputs = (images + step - 1) / step;
                let missing = ((outputs - 1) * step + window - images).max(0);
                (missing / 2, missing - missing / 2)
            }
            "EXPLICIT" => {
                if self.explicit.len() != 2 * count {
                    invalid!("Size of explicit_padding attribute must be {}", 2 * count);
                }
                (self.explicit[2 * axis], self.explicit[2 * axis + 1])
            }
            _ => (0, 0),
        };
        if [before, after].iter().any(|pad| !(0..=i64::from(i32::MAX)).contains(pad)) {
            invalid!("All elements of explicit_padding must be non-negative, got {before} and {after}");
        }
        let padded = images + before + after;
        // A window beyond the padded input by less than a step leaves no output.
        let output = (padded - window + step) / step;
        let Ok(output) = usize::try_from(output) else {
            invalid!("Expected shape dimensions to be non-negative, got {output}");
        };
        Ok(Spatial { input, filter, output, stride, before, lhs_dilation, rhs_dilation })
    }

    /// Calls `set(index, batch, feature, sum)` for each element of the result: its index, its image, its feature, and
    /// the sum of products of elements of `lhs` and `rhs`, which have the shapes of the tensors.
    fn sums(
        &self,
        plan: &Plan,
        [lhs, rhs]: [(&[f32], &Shape); 2],
        mut set: impl FnMut(usize, usize, usize, f32),
    ) {
        let (lhs_strides, rhs_strides) = (lhs.1.strides(), rhs.1.strides());
        let (out_strides, axes) = (plan.out_shape.strides(), &plan.axes);
        let taps: usize = plan.spatial.iter().map(|s| s.filter).product();
        let positions: usize = plan.spatial.iter().map(|s| s.output).product();
        let unravel = |mut flat: usize, size: fn(&Spatial) -> usize, index: &mut [usize]| {
            for (i, spatial) in plan.spatial.iter().enumerate().rev() {
                index[i] = flat % size(spatial);
                flat /= size(spatial);
            }
        };
        let (mut at, mut tap) = (vec![0; plan.spatial.len()], vec![0; plan.spatial.len()]);
        let out_batch = plan.batch / self.batch_groups;
        for batch in 0..out_batch {
            for feature in 0..plan.out_features {
                let group = feature / (plan.out_features / self.batch_groups).max(1);
                let image = group * out_batch + batch;
                let first = feature / (plan.out_features / self.feature_groups).max(1) * plan.rhs_features;
                for position in 0..positions {
                    unravel(position, |s| s.output, &mut at);
                    let mut sum = 0f32;
                    for flat in 0..taps {
                        unravel(flat, |s| s.filter, &mut tap);
                        let mut from = image * lhs_strides[axes.lhs.first];
                        let mut weight = feature * rhs_strides[axes.rhs.first];
                        let is_inside = plan.spatial.iter().enumerate().all(|(i, spatial)| {
                            weight += tap[i] * rhs_strides[axes.rhs.spatial[i]];
                            let position = spatial.at(at[i], tap[i]);
                            from += position.unwrap_or_default() * lhs_strides[axes.lhs.spatial[i]];
                            position.is_some()
                        });
                        if is_inside {
                            for c in 0..plan.rhs_features {
                                let x = lhs.0[from + (first + c) * lhs_strides[axes.lhs.second]];
                                sum += x * rhs.0[weight + c * rhs_strides[axes.rhs.second]];
                            }
                        }
                    }
                    let spatial: usize =
                        axes.out.spatial.iter().zip(&at).map(|(&axis, &i)| i * out_strides[axis]).sum();
                    let index = batch * out_strides[axes.out.first] + feature * out_strides[axes.out.second];
                    set(index + spatial, image, feature, sum);
                }
            }
        }
    }
}

/// Returns the elements of the filter relative to the zero points of the output features.
fn centred_filter(filter: &Tensor, scaling: Scaling, zero: impl Fn(usize) -> i32) -> Result<Vec<f32>> {
    let slice_of = scaling.slice_of(filter.shape());
    let centre = |(i, &v): (usize, &i8)| i32::from(v).wrapping_sub(zero(slice_of(i))) as f32;
    Ok(levels::<i8>(filter)?.iter().enumerate().map(centre).collect())
}

pub(super) fn integer(
    ctx: &mut KernelContext<'_>,
    convolution: &Convolution,
    [left, right, out]: [Scaling; 3],
) -> Result<()> {
    let (x, filter) = (ctx.input(0)?, ctx.input(1)?);
    let plan = convolution.plan(x.shape(), filter.shape())?;
    let of_x = left.inputs(ctx, 2, x.shape())?;
    let of_filter = right.inputs(ctx, 4, filter.shape())?;
    let of_out = out.inputs(ctx, 6, &plan.out_shape)?;
    let output = Output::new(of_x.scale(0), of_filter, of_out, out)?;
    let xs: Vec<f32> =
        levels::<i8>(x)?.iter().map(|&v| i32::from(v).wrapping_sub(of_x.zero(0)) as f32).collect();
    let weights = centred_filter(filter, right, |i| of_filter.zero(i))?;
    let result = build(plan.out_shape.clone(), |result: &mut [i32]| {
        let operands = [(xs.as_slice(), x.shape()), (weights.as_slice(), filter.shape())];
        convolution.sums(&plan, operands, |i, _, feature, sum| result[i] = output.value(sum, feature));
        Ok(())
    })?;
    ctx.set_output(0, result);
    Ok(())
}

/// Each image of the left operand, of floats, is quantized by itself.
pub(super) fn hybrid(ctx: &mut KernelContext<'_>, convolution: &Convolution, right: Scaling) -> Result<()> {
    let (x, filter) = (ctx.input(0)?, ctx.input(1)?);
    let plan = convolution.plan(x.shape(), filter.shape())?;
    let of_filter = right.inputs(ctx, 2, filter.shape())?;
    let weights = centred_filter(filter, right, |i| of_filter.zero(i))?;
    let values = x.values::<f32>()?;
    // The elements of an image are those with its index on the batch axis, which may be any axis.
    let images = Scaling { axis: Some(plan.axes.lhs.first), bounds: [0, 0] };
    let image_of = images.slice_of(x.shape());
    check_scratch::<(f32, Vec<usize>)>(plan.batch)?;
    let mut xs = vec![0f32; values.len()];
    let mut scales = vec![0f32; plan.batch];
    let mut places = vec![Vec::new(); plan.batch];
    (0..values.len()).for_each(|i| places[image_of(i)].push(i));
    for (places, scale) in places.iter().zip(&mut scales) {
        let quantized = Dynamic::new(&places.iter().map(|&i| values[i]).collect::<Vec<_>>());
        places.iter().zip(&quantized.levels).for_each(|(&i, &level)| xs[i] = level);
        *scale = quantized.scale;
    }
    let mut result = Tensor::zeros(DType::Float, plan.out_shape.clone())?;
    let out = result.values_mut::<f32>()?;
    let operands = [(xs.as_slice(), x.shape()), (weights.as_slice(), filter.shape())];
    convolution.sums(&plan, operands, |i, image, feature, sum| {
        out[i] = sum * scales[image] * of_filter.scale(feature);
    });
    ctx.set_output(0, result);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimension_numbers_are_parsed() -> Result<()> {
        // Images NHWC, filters HWIO, results NHWC.
        let message = [8, 0, 16, 3, 26, 2, 1, 2, 32, 2, 40, 3, 50, 2, 0, 1, 56, 0, 64, 3, 74, 2, 1, 2];
        let axes = Axes::parse(&message)?;
        assert_eq!(axes.lhs, Order { first: 0, second: 3, spatial: vec![1, 2] });
        assert_eq!(axes.rhs, Order { first: 3, second: 2, spatial: vec![0, 1] });
        assert_eq!(axes.out, axes.lhs);
        axes.lhs.check(4)?;
        assert!(axes.lhs.check(3).is_err());
        assert!(Axes::parse(&[26, 9, 1]).is_err());
        Ok(())
    }
}
