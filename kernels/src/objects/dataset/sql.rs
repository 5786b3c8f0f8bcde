//! A dataset of the rows that a query of an SQLite database returns. A thread runs the query, a few rows ahead of the
//! iterator, because the rows of a query borrow the connection.

use super::prefetch_iterator::Monitor;
use super::state::{ExchangedState, StateExchange};
use super::transform::{dataset, from_state};
use super::{Dataset, Element, ElementSpec, Pull, UNKNOWN, threads};
use crate::objects::sqlite;
use device::cancel::Cancellation;
use device::{Error, Result, invalid};
use graph::{Bool8, Code, DType, Tensor};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number and size in bytes of the rows that the query's thread reads ahead; one row may be larger.
const ROWS_AHEAD: usize = 64;
const BYTES_AHEAD: usize = 1 << 20;

/// The number of SQLite's instructions after which a query ends if it has been cancelled.
const STEPS_BETWEEN_CHECKS: i32 = 10_000;

/// The types that a column can be read as.
const COLUMN_TYPES: &[DType] = &[
    DType::String,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::Bool,
    DType::Double,
];

/// A query, and the types as which its columns are read.
struct Query {
    database: PathBuf,
    text: String,
    dtypes: Vec<DType>,
}

/// Returns the dataset of the rows of a query. The database is opened for each iterator, at its first element.
///
/// # Errors
/// `InvalidArgument` if a component is not a scalar, or of a type that columns cannot be read as.
pub(crate) fn sql(database: PathBuf, text: String, spec: ElementSpec) -> Result<Arc<Dataset>> {
    let query = Arc::new(Query { database, text, dtypes: spec.dtypes.clone() });
    dataset("Sql", spec, UNKNOWN, &[], move |_| {
        let state = SqlState { query: query.clone(), returned: 0, run: None };
        from_state("Sql", state, SqlState::next)
    })
}

/// Checks the types and shapes of a row's columns.
pub(crate) fn check_columns(spec: &ElementSpec) -> Result<()> {
    if let Some(dtype) = spec.dtypes.iter().find(|dtype| !COLUMN_TYPES.contains(dtype)) {
        let names: Vec<String> = COLUMN_TYPES.iter().map(ToString::to_string).collect();
        invalid!("Each element of `output_types_` must be one of: {}; not {dtype}", names.join(", "));
    }
    if spec.shapes.iter().any(|shape| shape.rank() != Some(0)) {
        invalid!("Each element of `output_shapes_` must be a scalar.");
    }
    Ok(())
}

/// The state of an iterator: the number of rows that it has returned, and the query while it runs.
struct SqlState {
    query: Arc<Query>,
    returned: u64,
    run: Option<QueryRun>,
}

impl SqlState {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let run = match &self.run {
            Some(run) => run,
            None => self.run.insert(QueryRun::start(self.query.clone(), self.returned)?),
        };
        match run.next(pull) {
            Ok(row) => {
                self.returned += u64::from(row.is_some());
                Ok(row)
            }
            Err(error) => {
                // The next call runs the query again, and skips the rows that were returned.
                self.run = None;
                Err(error)
            }
        }
    }
}

impl ExchangedState for SqlState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.returned)?;
        if exchange.is_restoring() {
            self.run = None;
        }
        Ok(())
    }
}

/// A query that a thread runs; dropping it ends the query.
struct QueryRun {
    rows: Arc<Monitor<Rows>>,
    cancellation: Arc<Cancellation>,
}

/// The rows between the query's thread and the iterator.
#[derive(Default)]
struct Rows {
    waiting: VecDeque<Result<Element>>,
    /// The size of the waiting rows.
    bytes: usize,
    has_ended: bool,
}

impl QueryRun {
    /// Starts a thread that runs a query, and leaves out its first `skipped` rows.
    ///
    /// # Errors
    /// `ResourceExhausted` if no thread can be started.
    fn start(query: Arc<Query>, skipped: u64) -> Result<QueryRun> {
        let run = QueryRun { rows: Monitor::new(Rows::default()), cancellation: Arc::default() };
        let (rows, cancellation) = (run.rows.clone(), run.cancellation.clone());
        threads::spawn(move || {
            let push = |row: Element| {
                let bytes = size_of(&row);
                let mut row = Some(Ok(row));
                rows.wait(&cancellation, |rows| {
                    let is_below = rows.waiting.len() < ROWS_AHEAD && rows.bytes + bytes <= BYTES_AHEAD;
                    (is_below || rows.waiting.is_empty()).then(|| {
                        rows.bytes += bytes;
                        rows.waiting.extend(row.take());
                    })
                })
            };
            let result = catch_unwind(AssertUnwindSafe(|| query.run(skipped, &cancellation, &push)))
                .unwrap_or_else(|_| Err(Error::internal("the thread of a query panicked")));
            rows.change(|rows| {
                rows.waiting.extend(result.err().map(Err));
                rows.has_ended = true;
            });
        })?;
        Ok(run)
    }

    fn next(&self, pull: &Pull) -> Result<Option<Element>> {
        self.rows.wait(&pull.cancellation, |rows| match rows.waiting.pop_front() {
            Some(row) => {
                rows.bytes -= row.as_ref().map_or(0, size_of);
                Some(row.map(Some))
            }
            None => rows.has_ended.then_some(Ok(None)),
        })?
    }
}

impl Drop for QueryRun {
    fn drop(&mut self) {
        self.cancellation.cancel(Error::new(Code::Cancelled, "the iterator of the query was dropped"));
    }
}

/// Returns the size of a row's strings in bytes.
fn size_of(row: &Element) -> usize {
    let strings = row.iter().filter_map(|value| value.as_strings().ok());
    strings.flatten().map(bytes::Bytes::len).sum()
}

impl Query {
    /// Calls `push` with each row after the first `skipped`. Only the first of several statements is run.
    fn run(
        &self,
        skipped: u64,
        cancellation: &Arc<Cancellation>,
        push: &dyn Fn(Element) -> Result<()>,
    ) -> Result<()> {
        let mut connection = sqlite::open(&self.database)?;
        let (cancellation, failed) =
            (cancellation.clone(), |e| sqlite::failed("progress_handler() failed", &e));
        let is_cancelled = move || cancellation.is_cancelled();
        connection.progress_handler(STEPS_BETWEEN_CHECKS, Some(is_cancelled)).map_err(failed)?;
        let prepared = Batch::new(&connection, &self.text).next();
        let statement = prepared.map_err(|e| sqlite::failed("Prepare() failed", &e))?;
        let count = statement.as_ref().map_or(0, |statement| statement.column_count());
        if count != self.dtypes.len() {
            invalid!(
                "The number of columns in query ({count}) must match the number of elements in output_types ({}).",
                self.dtypes.len()
            );
        }
        let Some(mut statement) = statement else { return Ok(()) };
        let stepped = |e: rusqlite::Error| sqlite::failed("Step() failed", &e);
        let mut rows = statement.query([]).map_err(stepped)?;
        let mut left = skipped;
        while let Some(row) = rows.next().map_err(stepped)? {
            if left > 0 {
                left -= 1;
                continue;
            }
            let column = |(i, &dtype)| {
                let value = row.get_ref(i).map_err(|e| sqlite::failed("Reading a column failed", &e))?;
                column_value(&connection, value, dtype)
            };
            push(self.dtypes.iter().enumerate().map(column).collect::<Result<_>>()?)?;
        }
        Ok(())
    }
}

/// Returns a column's value as a scalar; integers keep their low bits in narrower types.
fn column_value(connection: &Connection, value: ValueRef<'_>, dtype: DType) -> Result<Tensor> {
    let integer = || sqlite::integer_of(connection, value);
    Ok(match dtype {
        DType::String => Tensor::string(sqlite::bytes_of(value)?),
        DType::Double => Tensor::scalar(sqlite::real_of(connection, value)?),
        DType::Bool => Tensor::scalar(Bool8::from(integer()? != 0)),
        DType::Int8 => Tensor::scalar(integer()? as i8),
        DType::Int16 => Tensor::scalar(integer()? as i16),
        DType::Int32 => Tensor::scalar(integer()? as i32),
        DType::UInt8 => Tensor::scalar(integer()? as u8),
        DType::UInt16 => Tensor::scalar(integer()? as u16),
        _ => Tensor::scalar(integer()?),
    })
}
