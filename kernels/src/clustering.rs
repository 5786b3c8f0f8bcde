//! Kernels of clusters: the nearest centers of points, and initial centers.

use crate::numeric::philox::{Philox, PhiloxWords};
use crate::numeric::scratch::check_scratch;
use crate::random::distribution::unit_f32;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::{Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("NearestNeighbors", &[], |_| Kernel::sync(nearest)),
    KernelDef::of("KmeansPlusPlusInitialization", &[], |_| Kernel::sync(initial_centers)),
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
        check_scratch::<(f32, usize)>(count)?;
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

/// The number of points that are drawn in vain before a point is taken that need not be drawn.
const DRAWS: usize = 1 << 16;

/// The choice of centers among points.
struct Centers<'a> {
    points: &'a [f32],
    width: usize,
    /// Half of the square of each point's distance from the origin.
    halves: Vec<f32>,
    chosen: Vec<usize>,
    /// Half of the square of each point's distance from the nearest center.
    distances: Vec<f32>,
    random: PhiloxWords,
}

impl<'a> Centers<'a> {
    fn new(points: &'a [f32], count: usize, width: usize, seed: i64) -> Centers<'a> {
        let point = |i: usize| &points[i * width..(i + 1) * width];
        Centers {
            points,
            width,
            halves: (0..count).map(|i| 0.5 * point(i).iter().map(|v| v * v).sum::<f32>()).collect(),
            chosen: Vec::new(),
            distances: vec![f32::INFINITY; count],
            random: PhiloxWords::new(Philox::new(seed as u64, 0)),
        }
    }

    /// Returns a uniform number in `0..bound`; random words that would favor some numbers are drawn again.
    fn uniform(&mut self, bound: u64) -> u64 {
        let mut word = || u64::from(self.random.next()) | u64::from(self.random.next()) << 32;
        if bound.is_power_of_two() {
            return word() & (bound - 1);
        }
        let rejected = u64::MAX % bound + 1;
        loop {
            let word = word();
            if word >= rejected {
                return word % bound;
            }
        }
    }

    /// Draws a point that is no center, with a chance in proportion to its distance from the nearest center.
    fn draw(&mut self) -> usize {
        let count = self.distances.len();
        if self.chosen.is_empty() {
            return self.uniform(count as u64) as usize;
        }
        let mut total = 0.0;
        let sums: Vec<f32> = self
            .distances
            .iter()
            .map(|distance| {
                total += distance;
                total
            })
            .collect();
        for _ in 0..DRAWS {
            let at = unit_f32(self.random.next()) * total;
            let point = sums.partition_point(|&sum| sum <= at);
            if point < count && !self.chosen.contains(&point) {
                return point;
            }
        }
        // All other points are at the centers.
        (0..count).find(|point| !self.chosen.contains(point)).unwrap_or(0)
    }

    /// Returns the distances if the point were a center too.
    fn distances_with(&self, point: usize) -> Vec<f32> {
        let of = |i: usize| &self.points[i * self.width..(i + 1) * self.width];
        let distance = |(i, least): (usize, &f32)| {
            let product: f32 = of(i).iter().zip(of(point)).map(|(a, b)| a * b).sum();
            least.min((self.halves[i] + self.halves[point] - product).max(0.0))
        };
        self.distances.iter().enumerate().map(distance).collect()
    }

    /// Adds the best of several drawn points to the centers: that from which the sum of distances is the least.
    fn add(&mut self, draws: usize) {
        let mut best: Option<(f32, usize, Vec<f32>)> = None;
        for _ in 0..draws {
            let point = self.draw();
            let distances = self.distances_with(point);
            let sum = distances.iter().sum();
            if best.as_ref().is_none_or(|(least, ..)| sum < *least) {
                best = Some((sum, point, distances));
            }
        }
        if let Some((_, point, distances)) = best {
            self.chosen.push(point);
            self.distances = distances;
        }
    }
}

/// Outputs points that are far from each other (Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding",
/// SODA 2007).
fn initial_centers(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (points, [rows, width]) = matrix(ctx, 0, "points")?;
    let number = |i: usize, name: &str| -> Result<i64> { Ok(ctx.scalar(i, name)?.item::<i64>()?) };
    let (wanted, seed) = (number(1, "num_to_sample")?, number(2, "seed")?);
    let retries = number(3, "num_retries_per_sample")?;
    let Some(count) = usize::try_from(wanted).ok().filter(|&count| count > 0) else {
        invalid!("Expected num_to_sample > 0.");
    };
    if count > rows {
        invalid!("Expected num_to_sample <= points.rows(). {count} vs {rows}.");
    }
    let draws = match usize::try_from(retries) {
        Ok(retries) => retries.saturating_add(1),
        Err(_) => 3 + (count as f64).ln() as usize,
    };
    // A distance and half of a square norm for each point.
    check_scratch::<[f32; 2]>(rows)?;
    let mut centers = Centers::new(points, rows, width, seed);
    for _ in 0..count {
        ctx.check_cancelled()?;
        centers.add(draws);
    }
    let chosen = centers.chosen.iter().flat_map(|&i| &points[i * width..(i + 1) * width]);
    let samples: Vec<f32> = chosen.copied().collect();
    ctx.set_output(0, Tensor::from_slice(&samples, Shape::new(&[count, width])?)?);
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
