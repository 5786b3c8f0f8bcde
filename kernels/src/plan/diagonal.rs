//! The pairing of the elements of batches of matrices with the elements of their packed diagonals.

use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::Shape;

/// The version of a diagonal op: the first version handles only the main diagonal, the third has an attribute for the
/// alignment of shorter diagonals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpVersion {
    First,
    Second,
    Third,
}

/// The operation that an op on diagonals performs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiagonalOp {
    /// `MatrixDiag`: creates matrices from diagonals.
    Diag,
    /// `MatrixDiagPart`: extracts the diagonals of matrices.
    Part,
    /// `MatrixSetDiag`: replaces the diagonals of matrices.
    Set,
}

/// A range of diagonals, numbered upwards from the main diagonal 0. Packed diagonals are rows of equal length;
/// `left_above` and `left_below` say whether shorter diagonals above and below the main diagonal are aligned to the
/// left.
#[derive(Clone, Copy)]
struct DiagonalBand {
    lower: i64,
    upper: i64,
    left_above: bool,
    left_below: bool,
}

impl DiagonalBand {
    /// Returns the number of diagonals in the range.
    fn count(&self) -> usize {
        (self.upper - self.lower + 1) as usize
    }

    /// Returns the length of the longest diagonal of the range in a matrix of `rows` rows and `columns` columns.
    fn longest(&self, rows: usize, columns: usize) -> usize {
        let (rows, columns) = (rows as i64, columns as i64);
        (rows + self.upper.min(0)).min(columns - self.lower.max(0)).max(0) as usize
    }

    /// Returns an error unless all diagonals of the range lie in a matrix of `rows` rows and `columns` columns.
    fn check(&self, rows: usize, columns: usize) -> Result<()> {
        for (name, k) in [("lower_diag_index", self.lower), ("upper_diag_index", self.upper)] {
            if k != 0 && !(-(rows as i64) < k && k < columns as i64) {
                invalid!("{name} is out of bound: {k} It must be between {} and {columns}", -(rows as i64));
            }
        }
        Ok(())
    }

    /// Returns, for each element of the diagonals, its index in the matrix and its index in the packed diagonals,
    /// whose rows have `longest` elements.
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

/// An op on diagonals: its version, its operation, and its alignment of shorter diagonals.
#[derive(Clone, Copy, Debug)]
pub struct Diagonals {
    form: OpVersion,
    work: DiagonalOp,
    /// True if shorter diagonals above the main diagonal are aligned to the left, and the same for diagonals below it.
    sides: (bool, bool),
}

impl Diagonals {
    /// Reads the attributes of the node.
    pub fn new(init: &KernelInit<'_>, form: OpVersion, work: DiagonalOp) -> Result<Diagonals> {
        let align = match form {
            OpVersion::Third => init.attr::<String>("align")?,
            _ => "LEFT_LEFT".to_owned(),
        };
        Ok(Diagonals { form, work, sides: (align.starts_with("LEFT"), align.ends_with("LEFT")) })
    }

    /// Checks the inputs of the node, and pairs the elements of matrices and packed diagonals.
    pub fn plan(&self, ctx: &KernelContext<'_>) -> Result<DiagonalPlan> {
        let Diagonals { form, work, sides } = *self;
        match work {
            DiagonalOp::Diag => diag(ctx, form, sides),
            DiagonalOp::Part => part(ctx, form, sides),
            DiagonalOp::Set => set(ctx, form, sides),
        }
    }
}

/// The pairs of elements of a batch of matrices and elements of their packed diagonals.
#[derive(Debug)]
pub struct DiagonalPlan {
    /// The shape of the output.
    pub shape: Shape,
    /// For each element of the diagonals, its index in the matrix and its index in the packed diagonals.
    pub places: Vec<(usize, usize)>,
    /// The number of elements of each matrix.
    pub matrix: usize,
    /// The number of elements of the packed diagonals of each matrix.
    pub packed: usize,
    /// The input whose value fills the elements outside the diagonals; zero if `None`.
    pub padding: Option<usize>,
}

/// Returns the range of diagonals given by input `at`; for the first version of the op, the main diagonal.
fn band(
    ctx: &KernelContext<'_>,
    at: usize,
    form: OpVersion,
    (left_above, left_below): (bool, bool),
) -> Result<DiagonalBand> {
    let (lower, upper) = match form {
        OpVersion::First => (0, 0),
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
    Ok(DiagonalBand { lower, upper, left_above, left_below })
}

/// Returns `at`, the index of the input with the padding value; returns `None` for the first version of the op, which
/// has no padding value.
fn padding(ctx: &KernelContext<'_>, at: usize, form: OpVersion) -> Result<Option<usize>> {
    if form == OpVersion::First {
        return Ok(None);
    }
    let shape = ctx.shape(at)?;
    if shape.num_elements() != 1 {
        invalid!("padding_value must be a scalar, received shape {shape}");
    }
    Ok(Some(at))
}

fn diag(ctx: &KernelContext<'_>, form: OpVersion, sides: (bool, bool)) -> Result<DiagonalPlan> {
    let diagonal = ctx.shape(0)?;
    let band = band(ctx, 1, form, sides)?;
    let Some((&longest, mut batch)) = diagonal.split_last() else {
        invalid!("diagonal must be at least 1-dim, received shape: {diagonal}");
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
        OpVersion::First => (longest as i64, longest as i64),
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
    // The padding value may not be a vector of one element, unlike in `MatrixDiagPart`.
    if form != OpVersion::First && ctx.shape(4)?.rank() != 0 {
        invalid!("padding_value must be a scalar, not shape {}", ctx.shape(4)?);
    }
    Ok(DiagonalPlan {
        shape: Shape::new(&[batch, &[rows, columns]].concat())?,
        places: band.places(rows, columns, longest),
        matrix: rows * columns,
        packed: band.count() * longest,
        padding: padding(ctx, 4, form)?,
    })
}

/// Returns the batch dimensions, the rows and the columns of a batch of matrices.
fn matrices(input: &Shape) -> Result<(&[usize], usize, usize)> {
    match input.dims() {
        [batch @ .., rows, columns] => Ok((batch, *rows, *columns)),
        _ => Err(Error::invalid(format!("input must be at least 2-dim, received shape: {input}"))),
    }
}

/// Returns the shape of the packed diagonals of a batch.
fn packed(batch: &[usize], band: &DiagonalBand, longest: usize) -> Result<Shape> {
    let mut dims = batch.to_vec();
    if band.count() > 1 {
        dims.push(band.count());
    }
    dims.push(longest);
    Ok(Shape::new(&dims)?)
}

fn part(ctx: &KernelContext<'_>, form: OpVersion, sides: (bool, bool)) -> Result<DiagonalPlan> {
    let (batch, rows, columns) = matrices(ctx.shape(0)?)?;
    let band = band(ctx, 1, form, sides)?;
    band.check(rows, columns)?;
    let padding = padding(ctx, 2, form)?;
    let longest = band.longest(rows, columns);
    Ok(DiagonalPlan {
        shape: packed(batch, &band, longest)?,
        places: band.places(rows, columns, longest),
        matrix: rows * columns,
        packed: band.count() * longest,
        padding,
    })
}

fn set(ctx: &KernelContext<'_>, form: OpVersion, sides: (bool, bool)) -> Result<DiagonalPlan> {
    let (input, diagonal) = (ctx.shape(0)?, ctx.shape(1)?);
    let (batch, rows, columns) = matrices(input)?;
    let band = band(ctx, 2, form, sides)?;
    band.check(rows, columns)?;
    let longest = band.longest(rows, columns);
    let expected = packed(batch, &band, longest)?;
    if *diagonal != expected {
        invalid!(
            "Either first dimensions of diagonal don't match input.shape[:-2], or the diagonals' sizes are wrong: \
             input shape: {input}, diagonal shape: {diagonal}, expected diagonal shape: {expected}"
        );
    }
    Ok(DiagonalPlan {
        shape: input.clone(),
        places: band.places(rows, columns, longest),
        matrix: rows * columns,
        packed: band.count() * longest,
        padding: None,
    })
}
