//! Kernels of clusters: the nearest centers of points, and initial centers.

use crate::numeric::philox::Philox;
use crate::random::distribution::unit_f32;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::{Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("NearestNeighbors", &[], |_| Kernel::sync(nearest)),
    KernelDef::of("KMC2ChainInitialization", &[], |_| Kernel::sync(chain)),
];

fn matrix<'a>(ctx: &'a KernelContext<'_>, input: usize, name: &str) -> Result<(&'a [f32], [usize; 2])> {
    let tensor = ctx.input(input)?;
    let &[rows, columns] = tensor.shape().dims() else {
        invalid!("Input {name} should be a matrix, not of shape {}", tensor.shape());
    };
    Ok((tensor.values()?, [rows, columns]))
}

/// Outputs the indices of the `k` centers nearest to each point, and their squared distances, in ascending order of the
/// distances; of centers at the same distance, the first comes first.
fn nearest(ctx: &mut KernelContext<'_>) -> Result<()> {
    let ((points, [rows, width]), (centers, [count, center_width])) =
        (matrix(ctx, 0, "points")?, matrix(ctx, 1, "centers")?);
    let k = ctx.input(2)?;
    if k.shape().rank() != 0 {
        invalid!("Input k should be a scalar.");
    }
    if rows == 0 {
        invalid!("Expected points.rows() > 0.");
    }
    if width != center_width {
        invalid!("Expected point_dimensions == center_dimensions: {width} vs {center_width}.");
    }
    let Ok(k) = usize::try_from(k.item::<i64>()?) else {
        invalid!("k must not be negative, got {}", k.item::<i64>()?);
    };
    let k = k.min(count);
    let shape = Shape::new(&[rows, k])?;
    let mut indices = Tensor::zeros(graph::DType::Int64, shape.clone())?;
    let mut distances = Tensor::zeros(graph::DType::Float, shape)?;
    if k > 0 {
        let out = indices.values_mut::<i64>()?.chunks_exact_mut(k);
        let out = out.zip(distances.values_mut::<f32>()?.chunks_exact_mut(k));
        let mut ranked: Vec<(f32, usize)> = Vec::with_capacity(count);
        for (row, (indices, distances)) in out.enumerate() {
            ctx.check_cancelled()?;
            let point = &points[row * width..(row + 1) * width];
            ranked.clear();
            ranked.extend((0..count).map(|center| {
                let center_point = &centers[center * width..(center + 1) * width];
                let square = |(a, b): (&f32, &f32)| f64::from(a - b) * f64::from(a - b);
                (point.iter().zip(center_point).map(square).sum::<f64>() as f32, center)
            }));
            ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
            for ((index, distance), &(squared, center)) in indices.iter_mut().zip(distances).zip(&ranked) {
                (*index, *distance) = (center as i64, squared);
            }
        }
    }
    ctx.set_output(0, indices);
    ctx.set_output(1, distances);
    Ok(())
}

/// Outputs the end of a Markov chain over candidates, which moves to the next candidate with a probability in proportion
/// to its distance (Bachem et al., "Approximate k-means++ in sublinear time", AAAI 2016).
fn chain(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (distances, seed) = (ctx.input(0)?, ctx.input(1)?);
    if distances.shape().rank() != 1 {
        invalid!("Input distances should be a vector.");
    }
    if seed.shape().rank() != 0 {
        invalid!("Input seed should be a scalar.");
    }
    let distances = distances.values::<f32>()?;
    let Some((&first, rest)) = distances.split_first() else {
        return Err(Error::invalid("Expected distances_tensor.size() > 0."));
    };
    let mut random = Philox::new(seed.item::<i64>()? as u64, 0);
    let (mut selected, mut numbers) = ((0, first), [0; 4]);
    for (i, &candidate) in rest.iter().enumerate() {
        if i % 4 == 0 {
            numbers = random.next();
        }
        if candidate > unit_f32(numbers[i % 4]) * selected.1 {
            selected = (i as i64 + 1, candidate);
        }
    }
    ctx.set_output(0, Tensor::scalar(selected.0));
    Ok(())
}
