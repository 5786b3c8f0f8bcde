//! Kernels of optimizer steps: they lock the variable and its slots, check shapes, and apply the optimizer's rule to
//! the elements.

mod rules;

use crate::numeric::dispatch::{FLOATS, FRACTIONS, dispatch};
use crate::numeric::scalar::{Analytic, Semiring as _};
use crate::numeric::threads::{PARALLEL, is_parallel_under_lock, join};
use crate::numeric::widen::Lane;
use crate::plan::scatter::pass_reference;
use crate::plan::training::{Arguments, check_rows, check_scalar, same_shape};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::variable::{Variable, VariableInput, lock_all};
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// Makes the kernel table entries of each optimizer's ops, given the group of dtypes, the rule, the number of variables
/// (including slots), and the name of the flag attribute.
macro_rules! kernels {
    ($($group:ident $rule:ident $count:literal $flag:literal: $($op:literal)*;)*) => {
        &[$($(
            KernelDef::of($op, kernels!(@types $group), |init| dispatch!($group, init.attr::<DType>("T")?, T => {
                step::<T, $count>(init, $flag, |scalars, flag| {
                    let rule = rules::$rule::<<T as Lane>::Wide>(scalars, flag)?;
                    Ok(Box::new(move |slices, grad| walk(slices, grad, &rule)))
                })
            }))
        ),*),*]
    };
    (@types float) => { &[("T", FLOATS)] };
    (@types fraction) => { &[("T", FRACTIONS)] };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    fraction gradient_descent 1 "": "ApplyGradientDescent" "ResourceApplyGradientDescent";
    fraction momentum 2 "use_nesterov":
        "ApplyMomentum" "SparseApplyMomentum" "ResourceApplyMomentum" "ResourceSparseApplyMomentum";
    fraction keras_momentum 2 "use_nesterov": "ResourceApplyKerasMomentum" "ResourceSparseApplyKerasMomentum";
    fraction adam 3 "use_nesterov": "ApplyAdam" "ResourceApplyAdam";
    float adam_with_amsgrad 4 "": "ResourceApplyAdamWithAmsgrad";
    float ada_max 3 "": "ApplyAdaMax" "ResourceApplyAdaMax";
    fraction adagrad 2 "update_slots":
        "ApplyAdagrad" "SparseApplyAdagrad" "ResourceApplyAdagrad" "ResourceSparseApplyAdagrad";
    fraction adagrad_v2 2 "update_slots":
        "ApplyAdagradV2" "SparseApplyAdagradV2" "ResourceApplyAdagradV2" "ResourceSparseApplyAdagradV2";
    float adagrad_da 3 "":
        "ApplyAdagradDA" "SparseApplyAdagradDA" "ResourceApplyAdagradDA" "ResourceSparseApplyAdagradDA";
    fraction rms_prop 3 "": "ApplyRMSProp" "SparseApplyRMSProp" "ResourceApplyRMSProp" "ResourceSparseApplyRMSProp";
    fraction centered_rms_prop 4 "":
        "ApplyCenteredRMSProp" "SparseApplyCenteredRMSProp" "ResourceApplyCenteredRMSProp"
        "ResourceSparseApplyCenteredRMSProp";
    float ftrl 3 "multiply_linear_by_lr": "ApplyFtrl" "ResourceApplyFtrl";
    float ftrl_v2 3 "multiply_linear_by_lr": "ApplyFtrlV2" "ResourceApplyFtrlV2";
    float sparse_ftrl 3 "multiply_linear_by_lr": "SparseApplyFtrl" "ResourceSparseApplyFtrl";
    float sparse_ftrl_v2 3 "multiply_linear_by_lr": "SparseApplyFtrlV2" "ResourceSparseApplyFtrlV2";
    fraction adadelta 3 "": "ApplyAdadelta" "SparseApplyAdadelta" "ResourceApplyAdadelta" "ResourceSparseApplyAdadelta";
    float proximal_gradient_descent 1 "":
        "ApplyProximalGradientDescent" "SparseApplyProximalGradientDescent"
        "ResourceApplyProximalGradientDescent" "ResourceSparseApplyProximalGradientDescent";
    float proximal_adagrad 2 "":
        "ApplyProximalAdagrad" "SparseApplyProximalAdagrad" "ResourceApplyProximalAdagrad"
        "ResourceSparseApplyProximalAdagrad";
    float add_sign 2 "": "ApplyAddSign" "ResourceApplyAddSign";
    float power_sign 2 "": "ApplyPowerSign" "ResourceApplyPowerSign";
};

impl Arguments {
    fn scalars<T: Lane<Wide: Analytic>>(&self, ctx: &KernelContext<'_>) -> Result<SmallVec<[T::Wide; 8]>> {
        let read = |&(i, name): &(usize, &str)| {
            let value = ctx.input(i)?;
            check_scalar(name, value.shape())?;
            match value.dtype() {
                DType::Int64 => Ok(T::Wide::of_real(value.item::<i64>()? as f64)),
                _ => Ok(value.item::<T>()?.to_wide()),
            }
        };
        self.scalars.iter().map(read).collect()
    }
}

/// A rule's loop: updates slices of the variable and its slots by a gradient of equally many elements, in the type that
/// they are computed in. It is a trait object so that locking, checks and distribution over threads are compiled once
/// per element type, not once per rule.
type Update<W, const V: usize> = dyn Fn(&mut [&mut [W]; V], &[W]) + Sync;

/// A function that creates a rule's loop from the op's scalars and flag.
type MakeUpdate<W, const V: usize> = fn(&[W], bool) -> Result<Box<Update<W, V>>>;

/// Makes the kernel of an op with `V` variables; `make` creates the rule's loop from the op's scalars and flag.
fn step<T: Lane<Wide: Analytic>, const V: usize>(
    init: &KernelInit<'_>,
    flag: &str,
    make: MakeUpdate<T::Wide, V>,
) -> Result<Kernel> {
    let arguments = Arguments::new(init)?;
    if arguments.variables.len() != V {
        return Err(Error::internal(format!("{} has {} variables", init.node.op.name(), V)));
    }
    let flag = !flag.is_empty() && init.attr::<bool>(flag)?;
    let variables: [VariableInput; V] = std::array::from_fn(|i| VariableInput::new(init, i));
    Kernel::sync(move |ctx| {
        let update = make(&arguments.scalars::<T>(ctx)?, flag)?;
        let mut found = SmallVec::<[Arc<Variable>; 4]>::new();
        for variable in &variables {
            found.push(variable.get(ctx)?);
        }
        let mut guards = lock_all::<V>(std::array::from_fn(|i| &*found[i]))?;
        let mut values = SmallVec::<[&Tensor; 4]>::new();
        for (guard, variable) in guards.iter().zip(&found) {
            values.push(guard.as_ref().ok_or_else(|| variable.uninitialized())?);
        }
        let shape = values[0].shape().clone();
        for (value, name) in values.iter().zip(&arguments.variables) {
            same_shape(&shape, name, value.shape())?;
        }
        let (grad, name) = (ctx.input(arguments.grad.0)?, arguments.grad.1);
        let rows = match arguments.indices {
            None => {
                same_shape(&shape, name, grad.shape())?;
                None
            }
            Some(i) => Some(rows(&shape, grad.shape(), ctx.input(i)?)?),
        };
        let grad = grad.values::<T>()?;
        // The dtypes are checked before the variables are modified, so that an error changes nothing.
        values.into_iter().try_for_each(|value| value.values::<T>().map(|_| ()))?;
        let rows = rows.map(|numbers| {
            let len = grad.len().checked_div(numbers.len()).unwrap_or(0);
            GradientRows { numbers, len }
        });
        let mut slices: [&mut [T]; V] = no_slices();
        for (slice, guard) in slices.iter_mut().zip(&mut guards) {
            let value = match &rows {
                None => &mut **guard,
                Some(rows) => guard.slices_mut(rows.numbers.iter().copied(), rows.len)?,
            };
            if let Some(value) = value {
                *slice = value.values_mut::<T>()?;
            }
        }
        match rows {
            None => dense::<T, V>(slices, grad, &*update, is_parallel_under_lock(grad.len())),
            Some(rows) => {
                let is_parallel = is_parallel_under_lock(grad.len()) && rows.len >= 16;
                let bands = if is_parallel { rayon::current_num_threads() } else { 1 };
                sparse::<T, V>(slices, 0, &rows, grad, &*update, bands);
            }
        }
        drop(guards);
        pass_reference(ctx, &variables[0], found.swap_remove(0));
        Ok(())
    })
}

/// Returns, for each row of a sparse gradient, the row of the variable that it updates.
fn rows(var: &Shape, grad: &Shape, indices: &Tensor) -> Result<Vec<usize>> {
    let count = check_rows(var, grad, indices.shape())?;
    let check = |(i, index): (usize, i64)| match usize::try_from(index) {
        Ok(row) if row < count => Ok(row),
        _ => device::invalid!("Index {index} at offset {i} in indices is out of range"),
    };
    match indices.dtype() {
        DType::Int32 => indices.values::<i32>()?.iter().map(|&v| v.into()).enumerate().map(check).collect(),
        _ => indices.values::<i64>()?.iter().copied().enumerate().map(check).collect(),
    }
}

/// Updates every element of the variable and its slots, `vars`, in two halves in parallel where that pays.
fn dense<T: Lane<Wide: Analytic>, const V: usize>(
    mut vars: [&mut [T]; V],
    grad: &[T],
    update: &Update<T::Wide, V>,
    parallel: bool,
) {
    if !parallel || grad.len() <= PARALLEL / 4 {
        return update_stored(&mut vars, grad, update);
    }
    // The middle is a multiple of the length of every block.
    let middle = (grad.len() / 2).next_multiple_of(64).min(grad.len());
    let (left, right) = split(vars, middle);
    let (left_grad, right_grad) = grad.split_at(middle);
    join(|| dense::<T, V>(left, left_grad, update, true), || dense::<T, V>(right, right_grad, update, true));
}

/// The rows of the variable that the rows of a sparse gradient update.
struct GradientRows {
    numbers: Vec<usize>,
    /// The number of elements per row.
    len: usize,
}

/// Updates the rows in `vars`, of which the first has number `first`, in two halves in parallel while `bands` allows
/// it. A row that occurs twice is updated twice, in order.
fn sparse<T: Lane<Wide: Analytic>, const V: usize>(
    mut vars: [&mut [T]; V],
    first: usize,
    rows: &GradientRows,
    grad: &[T],
    update: &Update<T::Wide, V>,
    bands: usize,
) {
    let len = rows.len;
    let count = vars[0].len().checked_div(len).unwrap_or(0);
    if bands > 1 && count > 1 {
        let middle = count / 2;
        let (left, right) = split(vars, middle * len);
        join(
            || sparse::<T, V>(left, first, rows, grad, update, bands / 2),
            || sparse::<T, V>(right, first + middle, rows, grad, update, bands - bands / 2),
        );
        return;
    }
    for (i, &number) in rows.numbers.iter().enumerate() {
        if number >= first && number < first + count {
            let at = (number - first) * len;
            let mut row: [&mut [T]; V] = no_slices();
            for (row, var) in row.iter_mut().zip(&mut vars) {
                *row = &mut var[at..at + len];
            }
            update_stored(&mut row, &grad[i * len..][..len], update);
        }
    }
}

fn split<T, const V: usize>(vars: [&mut [T]; V], middle: usize) -> ([&mut [T]; V], [&mut [T]; V]) {
    let mut rights = [const { None }; V];
    let mut i = 0;
    let left = vars.map(|v| {
        let (left, right) = v.split_at_mut(middle);
        rights[i] = Some(right);
        i += 1;
        left
    });
    (left, rights.map(Option::unwrap_or_default))
}

/// The number of elements that the loop over a rule processes together. The values are in local arrays, which cannot
/// overlap, so that the compiler can use vector registers.
const BLOCK: usize = 16;

/// The number of elements of 16-bit floats that are widened at a time.
const WIDENED: usize = 4 * BLOCK;

/// Returns an array of empty slices as placeholders.
fn no_slices<'a, T, const V: usize>() -> [&'a mut [T]; V] {
    std::array::from_fn(|_| Default::default())
}

/// Applies an update to slices of elements in the variables' own dtype; 16-bit floats are widened block by block.
fn update_stored<T: Lane<Wide: Analytic>, const V: usize>(
    vars: &mut [&mut [T]; V],
    grad: &[T],
    update: &Update<T::Wide, V>,
) {
    if T::NATIVE {
        let mut slices: [&mut [T::Wide]; V] = no_slices();
        for (slice, var) in slices.iter_mut().zip(vars) {
            *slice = bytemuck::cast_slice_mut(var);
        }
        return update(&mut slices, bytemuck::cast_slice(grad));
    }
    let mut wide_grad = [T::Wide::ZERO; WIDENED];
    let mut wide_vars = [[T::Wide::ZERO; WIDENED]; V];
    for (b, grad) in grad.chunks(WIDENED).enumerate() {
        let range = b * WIDENED..b * WIDENED + grad.len();
        T::widen(grad, &mut wide_grad[..grad.len()]);
        let mut slices: [&mut [T::Wide]; V] = no_slices();
        for ((slice, wide), var) in slices.iter_mut().zip(&mut wide_vars).zip(&*vars) {
            *slice = &mut wide[..grad.len()];
            T::widen(&var[range.clone()], slice);
        }
        update(&mut slices, &wide_grad[..grad.len()]);
        for (wide, var) in wide_vars.iter().zip(&mut *vars) {
            T::narrow(&wide[..grad.len()], &mut var[range.clone()]);
        }
    }
}

/// Applies `rule` to every element of `vars` in the calling thread, block by block.
fn walk<W: Analytic, const V: usize>(
    vars: &mut [&mut [W]; V],
    grad: &[W],
    rule: &impl Fn([W; V], W) -> [W; V],
) {
    let (blocks, rest) = grad.as_chunks::<BLOCK>();
    for (b, grad) in blocks.iter().enumerate() {
        let at = b * BLOCK;
        let mut states = [[W::ZERO; BLOCK]; V];
        for (state, var) in states.iter_mut().zip(vars.iter()) {
            state.copy_from_slice(&var[at..at + BLOCK]);
        }
        for i in 0..BLOCK {
            let mut state = [W::ZERO; V];
            for (value, values) in state.iter_mut().zip(&states) {
                *value = values[i];
            }
            for (values, new) in states.iter_mut().zip(&rule(state, grad[i])) {
                values[i] = *new;
            }
        }
        for (state, var) in states.iter().zip(vars.iter_mut()) {
            var[at..at + BLOCK].copy_from_slice(state);
        }
    }
    let done = blocks.len() * BLOCK;
    for (i, &g) in rest.iter().enumerate() {
        let mut state = [W::ZERO; V];
        for (value, var) in state.iter_mut().zip(vars.iter()) {
            *value = var[done + i];
        }
        for (var, new) in vars.iter_mut().zip(&rule(state, g)) {
            var[done + i] = *new;
        }
    }
}

#[cfg(test)]
mod tests;
