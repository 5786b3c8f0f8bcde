//! Copies of slices by a table that the host uploads; dynamic stitch and partition and the diagonal ops use
//! them.

use super::copy::SOURCE;
use super::support::{copied_type_name, function, launch, read, upload, write};
use crate::engine::{Arguments, Function};
use device::DeviceTensor;
use device::Result;
use device::kernel::{KernelContext, KernelInit};
use graph::{DType, Shape, Tensor};
use std::sync::Arc;

/// The kernel that copies slices of elements of one dtype.
#[derive(Clone, Debug)]
pub(super) struct SliceCopier(Arc<Function>);

/// The slices to copy: each slice has `inner` elements, and the same slices are copied in each of `batches`
/// batches, which begin `steps[0]` elements apart in the source and `steps[1]` elements apart in the target.
pub(super) struct Slices {
    pub(super) inner: usize,
    pub(super) batches: usize,
    pub(super) steps: [usize; 2],
}

impl SliceCopier {
    /// Loads the kernel for a dtype.
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<SliceCopier> {
        Ok(SliceCopier(function(init, &SOURCE, format!("placed<{}>", copied_type_name(dtype)?))?))
    }

    /// Copies slices; `places` has, for each slice, its index in the source and its index in the target. The
    /// indices in the target must be distinct.
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
