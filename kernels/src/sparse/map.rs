//! Maps that store sparse tensors under numbers, and the stacking of several sparse tensors to one.

use super::coo::{Coo, joined, matrix, picked};
use device::Result;
use device::handle::{ObjectName, Owner};
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::resource::Resource;
use graph::{DType, Shape, Tensor};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The three parts of a sparse tensor: indices, values and shape.
#[derive(Clone, Debug)]
pub(super) struct SparseParts {
    pub(super) indices: Tensor,
    pub(super) values: Tensor,
    pub(super) shape: Tensor,
}

/// Sparse tensors by number, each stored until a step takes it.
#[derive(Debug, Default)]
struct SparseTensorsMap {
    stored: Mutex<StoredSparseTensors>,
}

#[derive(Debug, Default)]
struct StoredSparseTensors {
    next: i64,
    tensors: FxHashMap<i64, SparseParts>,
}

impl Resource for SparseTensorsMap {
    const KIND: &'static str = "N10tensorflow16SparseTensorsMapE";
}

impl SparseTensorsMap {
    fn add(&self, parts: SparseParts) -> i64 {
        let mut stored = self.stored.lock();
        let number = stored.next;
        stored.next += 1;
        stored.tensors.insert(number, parts);
        number
    }
}

/// Returns the parts of the sparse tensor in inputs 0 to 2, after checking them.
pub(super) fn input_parts(ctx: &KernelContext<'_>) -> Result<SparseParts> {
    Coo::of(ctx, 0)?.check_bounds()?;
    Ok(SparseParts {
        indices: ctx.input(0)?.clone(),
        values: ctx.input(1)?.clone(),
        shape: ctx.input(2)?.clone(),
    })
}

pub(super) fn add_one(init: &KernelInit<'_>) -> Result<Kernel> {
    let map = Owner::new(init, ObjectName::of(init, true)?);
    Kernel::sync(move |ctx| {
        let parts = input_parts(ctx)?;
        let map = map.object(|_| Ok(SparseTensorsMap::default()))?;
        ctx.set_output(0, Tensor::scalar(map.add(parts)));
        Ok(())
    })
}

pub(super) fn add_many(init: &KernelInit<'_>) -> Result<Kernel> {
    let map = Owner::new(init, ObjectName::of(init, true)?);
    Kernel::sync(move |ctx| {
        let rows = unstacked(&Coo::of(ctx, 0)?)?;
        let map = map.object(|_| Ok(SparseTensorsMap::default()))?;
        let numbers: Vec<i64> = rows.into_iter().map(|parts| map.add(parts)).collect();
        ctx.set_output(0, Tensor::vector(&numbers)?);
        Ok(())
    })
}

/// Makes the kernel that takes tensors out of the map that its `shared_name` names. Without a name, the node has an empty
/// map of its own.
pub(super) fn take_many(init: &KernelInit<'_>) -> Result<Kernel> {
    let map_name = ObjectName::of(init, false)?;
    let name = map_name.name.clone();
    let owner = Owner::new(init, map_name);
    let dtype = init.output_type(1);
    Kernel::sync(move |ctx| {
        let handles = ctx.input(0)?;
        if handles.shape().rank() != 1 {
            invalid!("sparse_handles should be a vector but received shape {}", handles.shape());
        }
        let map = owner.object(|_| Ok(SparseTensorsMap::default()))?;
        let mut taken = Vec::with_capacity(handles.num_elements());
        let mut stored = map.stored.lock();
        for handle in handles.values::<i64>()? {
            match stored.tensors.remove(handle) {
                Some(parts) => taken.push(parts),
                None => invalid!("Unable to find SparseTensor: {handle} in map: {name}"),
            }
        }
        drop(stored);
        set_sparse_outputs(ctx, stacked(&taken, dtype)?)
    })
}

pub(super) fn set_sparse_outputs(ctx: &mut KernelContext<'_>, parts: SparseParts) -> Result<()> {
    ctx.set_output(0, parts.indices);
    ctx.set_output(1, parts.values);
    ctx.set_output(2, parts.shape);
    Ok(())
}

/// Splits a sparse tensor into one sparse tensor per index of the first axis.
pub(super) fn unstacked(coo: &Coo<'_>) -> Result<Vec<SparseParts>> {
    let rank = coo.rank();
    if rank < 2 {
        invalid!("Rank of input SparseTensor should be > 1, but saw rank: {rank}");
    }
    coo.check_bounds()?;
    let count = coo.shape[0] as usize;
    // A tensor with one number per part is allocated first, so that a huge number of parts is refused before the parts
    // are allocated.
    Tensor::zeros(DType::Int64, Shape::new(&[count])?)?;
    let mut members = vec![Vec::new(); count];
    for (i, index) in coo.rows().enumerate() {
        members[index[0] as usize].push(i);
    }
    let shape = Tensor::vector(&coo.shape[1..])?;
    members
        .iter()
        .map(|members| {
            let rows: Vec<i64> = members.iter().flat_map(|&i| &coo.index(i)[1..]).copied().collect();
            let (indices, values) = (matrix(&rows, rank - 1, members.len())?, picked(coo.values, members)?);
            Ok(SparseParts { indices, values, shape: shape.clone() })
        })
        .collect()
}

/// Stacks sparse tensors along a new leading axis; every other axis has the largest size among the parts.
pub(super) fn stacked(parts: &[SparseParts], dtype: DType) -> Result<SparseParts> {
    let Some(first) = parts.first() else {
        invalid!("Must have at least 1 serialized SparseTensor, but input matrix has 0 rows");
    };
    let mut shape = first.shape.to_i64s()?;
    let rank = shape.len();
    let mut rows = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        if part.values.dtype() != dtype {
            invalid!(
                "Requested SparseTensor of type {dtype} but SparseTensor[{i}].values.dtype() == {}",
                part.values.dtype()
            );
        }
        let coo = Coo::new(&part.indices, &part.values, &part.shape)?;
        if coo.rank() != rank {
            invalid!(
                "Inconsistent rank across SparseTensors: rank prior to SparseTensor[{i}] was: {} but rank of \
                SparseTensor[{i}] is: {}",
                rank + 1,
                coo.rank() + 1
            );
        }
        shape.iter_mut().zip(&coo.shape).for_each(|(most, &d)| *most = d.max(*most));
        for index in coo.rows() {
            rows.push(i as i64);
            rows.extend_from_slice(index);
        }
    }
    let values = joined(&parts.iter().map(|p| &p.values).collect::<Vec<_>>())?;
    shape.insert(0, parts.len() as i64);
    let indices = matrix(&rows, rank + 1, values.num_elements())?;
    Ok(SparseParts { indices, values, shape: Tensor::vector(&shape)? })
}
