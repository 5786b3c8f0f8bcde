//! Set operations along the last axis of dense and sparse tensors. The elements of a set are distinct and in
//! ascending order.

use super::sparse::{Coo, check_sorted, matrix};
use bytes::Bytes;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::{Shape, Tensor};
use num_traits::AsPrimitive as _;
use std::collections::{BTreeMap, BTreeSet};

const MEMBERS: &[(&str, &[DType])] = &[("T", &[Int8, Int16, Int32, Int64, UInt8, UInt16, String])];

/// A type of set members: `i64` for integers of all dtypes, or strings.
trait Member<'a>: Ord + Copy {
    /// Returns a tensor's elements.
    fn all(tensor: &'a Tensor) -> Result<Vec<Self>>;

    /// Returns `members` as a vector tensor of dtype `dtype`.
    fn vector(dtype: DType, members: &[Self]) -> Result<Tensor>;
}

/// Evaluates an expression with `$T` bound to the integer type of a dtype.
macro_rules! integers {
    ($dtype:expr, $T:ident => $body:expr) => {
        integers!(@arms $dtype, $T => $body; Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16)
    };
    (@arms $dtype:expr, $T:ident => $body:expr; $($d:ident $t:ty),*) => {
        match $dtype {
            $(DType::$d => { type $T = $t; $body })*
            other => Err(Error::unimplemented(format!("no CPU kernel for sets of type {other}"))),
        }
    };
}

impl<'a> Member<'a> for i64 {
    fn all(tensor: &'a Tensor) -> Result<Vec<i64>> {
        integers!(tensor.dtype(), T => Ok(tensor.values::<T>()?.iter().map(|v| v.as_()).collect()))
    }

    fn vector(dtype: DType, members: &[i64]) -> Result<Tensor> {
        integers!(dtype, T => {
            Ok(Tensor::vector(&members.iter().map(|&v| v as T).collect::<Vec<_>>())?)
        })
    }
}

impl<'a> Member<'a> for &'a Bytes {
    fn all(tensor: &'a Tensor) -> Result<Vec<&'a Bytes>> {
        Ok(tensor.as_strings()?.iter().collect())
    }

    fn vector(_: DType, members: &[&'a Bytes]) -> Result<Tensor> {
        let shape = Shape::new(&[members.len()])?;
        Ok(Tensor::strings(members.iter().copied().cloned().collect(), shape)?)
    }
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SetSize", MEMBERS, |init| {
        let validate = init.attr::<bool>("validate_indices")?;
        let dtype = init.input_type(1);
        Kernel::sync(move |ctx| {
            let out = match dtype {
                String => sizes::<&Bytes>(ctx, validate),
                _ => sizes::<i64>(ctx, validate),
            }?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("DenseToDenseSetOperation", MEMBERS, |i| {
        operation(i, [Representation::Dense, Representation::Dense])
    }),
    KernelDef::of("DenseToSparseSetOperation", MEMBERS, |i| {
        operation(i, [Representation::Dense, Representation::Sparse])
    }),
    KernelDef::of("SparseToSparseSetOperation", MEMBERS, |i| {
        operation(i, [Representation::Sparse, Representation::Sparse])
    }),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The representation of a set operand.
enum Representation {
    Dense,
    Sparse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    FirstOnly,
    SecondOnly,
    Both,
    Either,
}

/// The nonempty sets of a tensor, by their index along all axes except the last.
struct Sets<T> {
    sets: BTreeMap<Vec<i64>, BTreeSet<T>>,
    /// The sizes of all axes except the last.
    shape: Vec<i64>,
}

impl<'a, T: Member<'a>> Sets<T> {
    fn of(ctx: &'a KernelContext<'_>, form: Representation, at: usize, validate: bool) -> Result<Sets<T>> {
        match form {
            Representation::Dense => Sets::dense(ctx.input(at)?),
            Representation::Sparse => Sets::sparse(&Coo::of(ctx, at)?, validate),
        }
    }

    fn dense(tensor: &'a Tensor) -> Result<Sets<T>> {
        let Some((&size, outer)) = tensor.shape().split_last().filter(|(_, outer)| !outer.is_empty()) else {
            invalid!("Invalid input rank, must be at least 2: shape {}", tensor.shape());
        };
        let mut sets = BTreeMap::new();
        let mut index = vec![0i64; outer.len()];
        for set in T::all(tensor)?.chunks_exact(size.max(1)) {
            sets.insert(index.clone(), set.iter().copied().collect());
            for (at, &size) in index.iter_mut().zip(outer).rev() {
                *at += 1;
                if *at < size as i64 {
                    break;
                }
                *at = 0;
            }
        }
        Ok(Sets { sets, shape: outer.iter().map(|&d| d as i64).collect() })
    }

    fn sparse(coo: &Coo<'a>, validate: bool) -> Result<Sets<T>> {
        let Some((_, outer)) = coo.shape.split_last().filter(|(_, outer)| !outer.is_empty()) else {
            invalid!("Invalid input rank, must be at least 2: shape {:?}", coo.shape);
        };
        if validate {
            check_sorted(coo.rows(), &coo.shape)?;
        } else {
            coo.check_bounds()?;
        }
        let mut sets: BTreeMap<Vec<i64>, BTreeSet<T>> = BTreeMap::new();
        for (index, member) in coo.rows().zip(T::all(coo.values)?) {
            let of = &index[..outer.len()];
            match sets.get_mut(of) {
                Some(set) => {
                    set.insert(member);
                }
                None => {
                    sets.insert(of.to_vec(), BTreeSet::from([member]));
                }
            }
        }
        Ok(Sets { sets, shape: outer.to_vec() })
    }
}

/// Returns the number of members of each set of a tensor.
fn sizes<'a, T: Member<'a>>(ctx: &'a KernelContext<'_>, validate: bool) -> Result<Tensor> {
    let coo = Coo::of(ctx, 0)?;
    let sets = Sets::<T>::sparse(&coo, validate)?;
    let mut out = Tensor::zeros(Int32, Shape::from_i64(&sets.shape)?)?;
    let sizes = out.values_mut::<i32>()?;
    for (index, set) in &sets.sets {
        sizes[place(index, &sets.shape)] = i32::try_from(set.len()).unwrap_or(i32::MAX);
    }
    Ok(out)
}

/// Returns the row-major position of an index, which is inside the shape.
fn place(index: &[i64], shape: &[i64]) -> usize {
    index.iter().zip(shape).fold(0, |place, (&i, &d)| place * d as usize + i as usize)
}

fn operation(init: &KernelInit<'_>, forms: [Representation; 2]) -> Result<Kernel> {
    let operation = match &*init.attr::<std::string::String>("set_operation")?.to_ascii_lowercase() {
        "a-b" => Operation::FirstOnly,
        "b-a" => Operation::SecondOnly,
        "intersection" => Operation::Both,
        "union" => Operation::Either,
        other => invalid!("Invalid set_operation {other}."),
    };
    let validate = init.attr::<bool>("validate_indices")?;
    let dtype = init.output_type(1);
    Kernel::sync(move |ctx| {
        let outputs = match dtype {
            String => operate::<&Bytes>(ctx, forms, operation, validate, dtype),
            _ => operate::<i64>(ctx, forms, operation, validate, dtype),
        }?;
        for (i, output) in outputs.into_iter().enumerate() {
            ctx.set_output(i, output);
        }
        Ok(())
    })
}

/// Returns the indices, the values and the shape of the sparse tensor that results from a set operation; `dtype` is the
/// dtype of the members.
fn operate<'a, T: Member<'a>>(
    ctx: &'a KernelContext<'_>,
    forms: [Representation; 2],
    operation: Operation,
    validate: bool,
    dtype: DType,
) -> Result<[Tensor; 3]> {
    let second = if forms[0] == Representation::Dense { 1 } else { 3 };
    let a = Sets::<T>::of(ctx, forms[0], 0, validate)?;
    let b = Sets::<T>::of(ctx, forms[1], second, validate)?;
    if a.shape != b.shape {
        invalid!("Mismatched group shapes {:?} and {:?}", a.shape, b.shape);
    }
    let rank = a.shape.len() + 1;
    let none = BTreeSet::new();
    let groups: BTreeSet<&Vec<i64>> = a.sets.keys().chain(b.sets.keys()).collect();
    let (mut indices, mut values, mut largest) = (Vec::new(), Vec::new(), 0);
    for group in groups {
        let (a, b) = (a.sets.get(group).unwrap_or(&none), b.sets.get(group).unwrap_or(&none));
        let result: Vec<T> = match operation {
            Operation::FirstOnly => a.difference(b).copied().collect(),
            Operation::SecondOnly => b.difference(a).copied().collect(),
            Operation::Both => a.intersection(b).copied().collect(),
            Operation::Either => a.union(b).copied().collect(),
        };
        largest = largest.max(result.len());
        for (i, member) in result.into_iter().enumerate() {
            indices.extend_from_slice(group);
            indices.push(i as i64);
            values.push(member);
        }
    }
    let mut shape = a.shape.clone();
    shape.push(largest as i64);
    Ok([matrix(&indices, rank, values.len())?, T::vector(dtype, &values)?, Tensor::vector(&shape)?])
}
