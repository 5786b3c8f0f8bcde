//! Slices of elements moved by a table that the host has made: what stitches, partitions and diagonals have in common.

use super::moved::SOURCE;
use super::support::{function, launch, moved_type_name, read, upload, write};
use crate::engine::{Arguments, Function};
use device::DeviceTensor;
use device::Result;
use device::kernel::{KernelContext, KernelInit};
use graph::{DType, Shape, Tensor};
use std::sync::Arc;

/// Moves slices of elements of one type.
#[derive(Clone, Debug)]
pub(super) struct Placer(Arc<Function>);

/// Slices of `inner` elements that move within each of `batches`, which are `steps` elements apart on both sides.
pub(super) struct Slices {
    pub(super) inner: usize,
    pub(super) batches: usize,
    pub(super) steps: [usize; 2],
}

impl Placer {
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<Placer> {
        Ok(Placer(function(init, &SOURCE, format!("placed<{}>", moved_type_name(dtype)?))?))
    }

    /// `places`: the number of each slice, where it is and where it goes. No two go to one place.
    pub(super) fn place(
        &self,
        ctx: &KernelContext<'_>,
        from: &DeviceTensor,
        to: &DeviceTensor,
        places: &[(usize, usize)],
        slices: &Slices,
    ) -> Result<()> {
        let n = places.len() * slices.inner * slices.batches;
        if n == 0 {
            return Ok(());
        }
        let table: Vec<i64> = places.iter().flat_map(|&(from, to)| [from as i64, to as i64]).collect();
        let table = Tensor::from_slice(&table, Shape::new(&[table.len()])?)?;
        let table = upload(ctx, &table)?;
        let arguments = Arguments::new()
            .address(read(from)?)
            .address(write(to)?)
            .address(read(&table)?)
            .count(n)
            .count(places.len())
            .count(slices.inner)
            .count(slices.steps[0])
            .count(slices.steps[1]);
        launch(ctx, &self.0, n, arguments)
    }
}
