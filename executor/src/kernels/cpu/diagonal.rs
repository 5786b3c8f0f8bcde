//! Diagonals of matrices in batches: taken out, put in, made to matrices.

use super::dispatch::ANY;
use super::moved::{Moved, moved};
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Shape, Tensor};

const TYPES: &[(&str, &[DType])] = &[("T", ANY)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MatrixDiag", TYPES, |i| make(i, Form::First, Work::Diag)),
    KernelDef::of("MatrixDiagV2", TYPES, |i| make(i, Form::Second, Work::Diag)),
    KernelDef::of("MatrixDiagV3", TYPES, |i| make(i, Form::Third, Work::Diag)),
    KernelDef::of("BatchMatrixDiag", TYPES, |i| make(i, Form::First, Work::Diag)),
    KernelDef::of("MatrixDiagPart", TYPES, |i| make(i, Form::First, Work::Part)),
    KernelDef::of("MatrixDiagPartV2", TYPES, |i| make(i, Form::Second, Work::Part)),
    KernelDef::of("MatrixDiagPartV3", TYPES, |i| make(i, Form::Third, Work::Part)),
    KernelDef::of("BatchMatrixDiagPart", TYPES, |i| make(i, Form::First, Work::Part)),
    KernelDef::of("MatrixSetDiag", TYPES, |i| make(i, Form::First, Work::Set)),
    KernelDef::of("MatrixSetDiagV2", TYPES, |i| make(i, Form::Second, Work::Set)),
    KernelDef::of("MatrixSetDiagV3", TYPES, |i| make(i, Form::Third, Work::Set)),
    KernelDef::of("BatchMatrixSetDiag", TYPES, |i| make(i, Form::First, Work::Set)),
];

/// The first form knows the main diagonal only, the third one says how diagonals are aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    First,
    Second,
    Third,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Diag,
    Part,
    Set,
}

/// Which diagonals, counted from the main one upwards, and where shorter ones stand in their row.
#[derive(Clone, Copy)]
struct Band {
    lower: i64,
    upper: i64,
    left_above: bool,
    left_below: bool,
}

impl Band {
    fn count(&self) -> usize {
        (self.upper - self.lower + 1) as usize
    }

    /// The length of the longest diagonal of a matrix of this size.
    fn longest(&self, rows: usize, columns: usize) -> usize {
        let (rows, columns) = (rows as i64, columns as i64);
        (rows + self.upper.min(0)).min(columns - self.lower.max(0)).max(0) as usize
    }

    /// An error unless all diagonals are in a matrix of this size.
    fn check(&self, rows: usize, columns: usize) -> Result<()> {
        for (name, k) in [("lower_diag_index", self.lower), ("upper_diag_index", self.upper)] {
            if k != 0 && !(-(rows as i64) < k && k < columns as i64) {
                invalid!("{name} is out of bound: {k} It must be between {} and {columns}", -(rows as i64));
            }
        }
        Ok(())
    }

    /// For each element of the diagonals, where it is in the matrix and where in the packed diagonals, which are
    /// `longest` apart.
    fn places(&self, rows: usize, columns: usize, longest: usize) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for (line, k) in (self.lower..=self.upper).rev().enumerate() {
            let (down, right) = ((-k).max(0) as usize, k.max(0) as usize);
            let len = rows.saturating_sub(down).min(columns.saturating_sub(right)).min(longest);
            let is_left = (k >= 0 && self.left_above) || (k <= 0 && self.left_below);
            let offset = line * longest + if is_left { 0 } else { longest - len };
            places.extend((0..len).map(|n| ((n + down) * columns + n + right, offset + n)));
        }
        places
    }
}

fn make(init: &KernelInit<'_>, form: Form, work: Work) -> Result<Kernel> {
    let align = match form {
        Form::Third => init.attr::<String>("align")?,
        _ => "LEFT_LEFT".to_owned(),
    };
    let sides = (align.starts_with("LEFT"), align.ends_with("LEFT"));
    moved!(init.output_type(0), E => Kernel::sync(move |ctx| match work {
        Work::Diag => diag::<E>(ctx, form, sides),
        Work::Part => part::<E>(ctx, form, sides),
        Work::Set => set::<E>(ctx, form, sides),
    }))
}

/// The band that input `at` names; the main diagonal in the first form.
fn band(
    ctx: &KernelContext<'_>,
    at: usize,
    form: Form,
    (left_above, left_below): (bool, bool),
) -> Result<Band> {
    let (lower, upper) = match form {
        Form::First => (0, 0),
        _ => {
            let k = ctx.input(at)?;
            if k.shape().rank() > 1 {
                invalid!("diag_index must be a scalar or vector, received shape: {}", k.shape());
            }
            match *k.to_i64s()? {
                [k] => (k, k),
                [lower, upper] => (lower, upper),
                _ => invalid!(
                    "diag_index must have only one or two elements, received {} elements.",
                    k.num_elements()
                ),
            }
        }
    };
    if lower > upper {
        invalid!("lower_diag_index must not be larger than upper_diag_index: {lower} > {upper}");
    }
    Ok(Band { lower, upper, left_above, left_below })
}

/// The padding in input `at`; zero in the first form.
fn padding<E: Moved>(ctx: &KernelContext<'_>, at: usize, form: Form) -> Result<E> {
    if form == Form::First {
        return Ok(E::zero());
    }
    let value = ctx.input(at)?;
    match E::view(value)? {
        [value] => Ok(value.clone()),
        _ => invalid!("padding_value must be a scalar, received shape {}", value.shape()),
    }
}

fn diag<E: Moved>(ctx: &mut KernelContext<'_>, form: Form, sides: (bool, bool)) -> Result<()> {
    let diagonal = ctx.input(0)?;
    let band = band(ctx, 1, form, sides)?;
    let Some((&longest, mut batch)) = diagonal.shape().split_last() else {
        invalid!("diagonal must be at least 1-dim, received shape: {}", diagonal.shape());
    };
    if band.count() > 1 {
        match batch.split_last() {
            Some((&lines, outer)) if lines == band.count() => batch = outer,
            _ => invalid!(
                "The number of diagonals provided in the input does not match the lower_diag_index and \
                upper_diag_index range."
            ),
        }
    }
    let least_rows = longest as i64 - band.upper.min(0);
    let least_columns = longest as i64 + band.lower.max(0);
    let (rows, columns) = match form {
        Form::First => (longest as i64, longest as i64),
        _ => match (ctx.scalar(2, "num_rows")?.to_i64s()?[0], ctx.scalar(3, "num_cols")?.to_i64s()?[0]) {
            (-1, -1) => (least_rows.max(least_columns), least_rows.max(least_columns)),
            (-1, columns) => (least_rows, columns),
            (rows, -1) => (rows, least_columns),
            given => given,
        },
    };
    if rows < least_rows {
        invalid!("The number of rows is too small.");
    }
    if columns < least_columns {
        invalid!("The number of columns is too small.");
    }
    if rows != least_rows && columns != least_columns {
        invalid!(
            "The number of rows or columns is not consistent with the specified d_lower, d_upper, and \
            diagonal."
        );
    }
    let (rows, columns) = (rows as usize, columns as usize);
    // Unlike where diagonals are taken, a vector of one is no padding here.
    if form != Form::First {
        ctx.scalar(4, "padding_value")?;
    }
    let padding = padding::<E>(ctx, 4, form)?;
    let shape = Shape::new(&[batch, &[rows, columns]].concat())?;
    let places = band.places(rows, columns, longest);
    let out = E::build(diagonal.dtype(), shape, |out| {
        out.fill(padding);
        let values = E::view(diagonal)?;
        let (size, from) = ((rows * columns).max(1), (band.count() * longest).max(1));
        for (matrix, values) in out.chunks_exact_mut(size).zip(values.chunks_exact(from)) {
            places.iter().for_each(|&(to, at)| matrix[to].clone_from(&values[at]));
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

/// The sizes of a batch of matrices.
fn matrices(input: &Tensor) -> Result<(&[usize], usize, usize)> {
    match input.shape().dims() {
        [batch @ .., rows, columns] => Ok((batch, *rows, *columns)),
        _ => Err(Error::invalid(format!("input must be at least 2-dim, received shape: {}", input.shape()))),
    }
}

/// The shape of the band's diagonals of a batch.
fn packed(batch: &[usize], band: &Band, longest: usize) -> Result<Shape> {
    let mut dims = batch.to_vec();
    if band.count() > 1 {
        dims.push(band.count());
    }
    dims.push(longest);
    Ok(Shape::new(&dims)?)
}

fn part<E: Moved>(ctx: &mut KernelContext<'_>, form: Form, sides: (bool, bool)) -> Result<()> {
    let input = ctx.input(0)?;
    let (batch, rows, columns) = matrices(input)?;
    let band = band(ctx, 1, form, sides)?;
    band.check(rows, columns)?;
    let padding = padding::<E>(ctx, 2, form)?;
    let longest = band.longest(rows, columns);
    let places = band.places(rows, columns, longest);
    let out = E::build(input.dtype(), packed(batch, &band, longest)?, |out| {
        out.fill(padding);
        let size = (rows * columns).max(1);
        let lines = out.chunks_exact_mut((band.count() * longest).max(1));
        for (out, matrix) in lines.zip(E::view(input)?.chunks_exact(size)) {
            places.iter().for_each(|&(at, to)| out[to].clone_from(&matrix[at]));
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

fn set<E: Moved>(ctx: &mut KernelContext<'_>, form: Form, sides: (bool, bool)) -> Result<()> {
    let (input, diagonal) = (ctx.input(0)?, ctx.input(1)?);
    let (batch, rows, columns) = matrices(input)?;
    let band = band(ctx, 2, form, sides)?;
    band.check(rows, columns)?;
    let longest = band.longest(rows, columns);
    let wanted = packed(batch, &band, longest)?;
    if *diagonal.shape() != wanted {
        invalid!(
            "Either first dimensions of diagonal don't match input.shape[:-2], or the diagonals' sizes are wrong: \
             input shape: {}, diagonal shape: {}, expected diagonal shape: {wanted}",
            input.shape(),
            diagonal.shape()
        );
    }
    let places = band.places(rows, columns, longest);
    let out = E::build(input.dtype(), input.shape().clone(), |out| {
        out.clone_from_slice(E::view(input)?);
        let from = (band.count() * longest).max(1);
        let matrices = out.chunks_exact_mut((rows * columns).max(1));
        for (matrix, values) in matrices.zip(E::view(diagonal)?.chunks_exact(from)) {
            places.iter().for_each(|&(to, at)| matrix[to].clone_from(&values[at]));
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}
