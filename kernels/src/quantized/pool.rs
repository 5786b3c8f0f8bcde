//! QuantizedMaxPool and QuantizedAvgPool. The values of the result have the range of the images.

use super::level::{Level, build};
use super::range::Quantized;
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::ops::pool::{Pool, PoolSizes};

/// Reads the window sizes and strides.
pub(super) fn attrs(init: &KernelInit<'_>) -> Result<Pool> {
    let pool = Pool::of(init.node)?;
    if pool.is_depthwise() {
        return Err(Error::unimplemented("Pooling of quantized values over channels is not supported."));
    }
    Ok(pool)
}

/// Sets output 0 to a function of the values under each window, channel by channel.
fn each_window<T: Level>(
    ctx: &mut KernelContext<'_>,
    pool: &Pool,
    function: impl Fn(&mut dyn Iterator<Item = T>) -> T,
) -> Result<()> {
    let x = Quantized::<T>::input(ctx, 0, 1, "input")?;
    let sizes = pool.sizes(x.tensor.shape())?;
    let PoolSizes { batch, rows, columns, channels, .. } = sizes;
    let range = x.range;
    let out = build(pool.output_shape(&sizes)?, |out: &mut [T]| {
        if out.is_empty() {
            return Ok(());
        }
        let mut pixels = out.chunks_exact_mut(channels);
        for image in 0..batch {
            for (row, column) in (0..rows.output).flat_map(|r| (0..columns.output).map(move |c| (r, c))) {
                let Some(pixel) = pixels.next() else { return Ok(()) };
                for (channel, o) in pixel.iter_mut().enumerate() {
                    let places = rows.range(row).flat_map(|y| columns.range(column).map(move |x| (y, x)));
                    let mut values = places
                        .map(|(y, x)| x_at(x, y, columns.input, rows.input, image, channels, channel))
                        .map(|at| x.levels[at]);
                    *o = function(&mut values);
                }
            }
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}

fn x_at(
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    image: usize,
    channels: usize,
    channel: usize,
) -> usize {
    ((image * height + y) * width + x) * channels + channel
}

pub(super) fn maxima<T: Level>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    each_window::<T>(ctx, pool, |values| values.max().unwrap_or(T::wrapped(T::LOWEST)))
}

/// Means are rounded towards zero.
pub(super) fn means<T: Level>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    each_window::<T>(ctx, pool, |values| {
        let (sum, count) = values.fold((0i64, 0i64), |(sum, count), v| (sum + v.wide(), count + 1));
        T::wrapped(sum / count.max(1))
    })
}
