//! Databases of summaries: SQLite files in TensorBoard's schema, to which summary writers write tensors and graphs. A
//! user has experiments, an experiment has runs, a run has tags, and a tag has a tensor for each step.

mod event;
mod graph_rows;

use crate::numeric::philox::entropy;
use crate::objects::sqlite::{self, blob, text};
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The tables and indices of a database.
const SCHEMA: &str = include_str!("schema.sql");

/// The masks of random ids: small numbers at first, larger ones after ids have collided.
const ID_MASKS: [u64; 3] = [(1 << 23) - 1, (1 << 31) - 1, (1 << 47) - 1];

/// Maximum number of attempts to find an id that is free.
const MOST_ATTEMPTS: usize = 21;

/// The types of tensors that a database holds.
const TENSOR_TYPES: &[DType] = &[
    DType::String,
    DType::Half,
    DType::Float,
    DType::Double,
    DType::Complex64,
    DType::Complex128,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
];

/// The file of a database, and the names under which a writer writes; the empty name stands for none.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) path: PathBuf,
    pub(crate) experiment: Bytes,
    pub(crate) run: Bytes,
    pub(crate) user: Bytes,
}

/// A run of a database to which steps write; dropping it sets the time at which the run ended.
pub(crate) struct SummaryDatabase {
    settings: Settings,
    /// The open database; `None` before [`SummaryDatabase::open`].
    open: Mutex<Option<OpenDatabase>>,
}

/// A tensor of a tag, and the tag's description. Times are in seconds since 1970.
#[derive(Debug)]
pub(crate) struct TaggedTensor {
    pub(crate) tag: Bytes,
    pub(crate) tensor: Tensor,
    pub(crate) metadata: Metadata,
}

/// The parts of a `SummaryMetadata` message that a database holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metadata {
    plugin: Bytes,
    plugin_data: Bytes,
    display_name: Bytes,
    description: Bytes,
}

impl Metadata {
    /// Returns the metadata of a value that a plugin of TensorBoard shows.
    pub(crate) fn of_plugin(name: &'static str) -> Metadata {
        Metadata { plugin: Bytes::from_static(name.as_bytes()), ..Metadata::default() }
    }
}

struct OpenDatabase {
    connection: Connection,
    ids: IdSource,
    user: Option<i64>,
    experiment: Option<Started>,
    run: Option<Started>,
    tags: HashMap<Bytes, i64>,
}

/// A row with the time of its first event.
#[derive(Clone, Copy, Debug)]
struct Started {
    id: i64,
    time: f64,
}

/// A source of ids that no other row of the database has.
#[derive(Default)]
struct IdSource {
    collisions: usize,
}

impl IdSource {
    fn next(&mut self, connection: &Connection) -> Result<i64> {
        for _ in 0..MOST_ATTEMPTS {
            let mask = ID_MASKS[self.collisions.min(ID_MASKS.len() - 1)];
            let id = (entropy() & mask).max(1) as i64;
            match connection.execute("INSERT INTO Ids (id) VALUES (?)", [id]) {
                Ok(_) => return Ok(id),
                Err(e) if e.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                    self.collisions += 1;
                }
                Err(e) => return Err(failed(e)),
            }
        }
        Err(Error::new(Code::ResourceExhausted, "no free id was found in the database of summaries"))
    }
}

fn failed(error: rusqlite::Error) -> Error {
    sqlite::failed("Writing to the database of summaries failed", &error)
}

/// Returns the seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl SummaryDatabase {
    /// Returns a database that is not yet open.
    pub(crate) fn new(settings: Settings) -> SummaryDatabase {
        SummaryDatabase { settings, open: Mutex::default() }
    }

    /// Opens the database, and creates the file and the tables that do not exist; does nothing if it is open.
    ///
    /// # Errors
    /// `InvalidArgument` if the file cannot be opened or is no database; `Unavailable` if another process holds its
    /// lock for more than 10 s.
    pub(crate) fn open(&self) -> Result<()> {
        let mut open = self.open.lock();
        if open.is_none() {
            let connection = sqlite::open(&self.settings.path)?;
            let created = connection.execute_batch(&format!("BEGIN IMMEDIATE;\n{SCHEMA}COMMIT;"));
            created.map_err(|e| {
                let path = self.settings.path.display();
                sqlite::failed(&format!("Creating the tables of the database {path} failed"), &e)
            })?;
            *open = Some(OpenDatabase {
                connection,
                ids: IdSource::default(),
                user: None,
                experiment: None,
                run: None,
                tags: HashMap::new(),
            });
        }
        Ok(())
    }

    /// Writes a tensor for a step.
    ///
    /// # Errors
    /// `Unimplemented` for types that databases do not hold.
    pub(crate) fn write(&self, step: i64, tagged: &TaggedTensor) -> Result<()> {
        self.write_at(now(), step, tagged)
    }

    /// Writes a tensor that was computed at `time`.
    fn write_at(&self, time: f64, step: i64, tagged: &TaggedTensor) -> Result<()> {
        let dtype = tagged.tensor.dtype();
        if !TENSOR_TYPES.contains(&dtype) {
            return Err(Error::unimplemented(format!("{dtype} tensors unsupported on platform")));
        }
        self.with_open(|open| {
            let tag = open.tag(&self.settings, time, tagged)?;
            open.in_transaction(|open| open.write_tensor(tag, time, step, &tagged.tensor))
        })
    }

    fn with_open<T>(&self, act: impl FnOnce(&mut OpenDatabase) -> Result<T>) -> Result<T> {
        match &mut *self.open.lock() {
            Some(open) => act(open),
            None => Err(Error::new(Code::FailedPrecondition, "Class was not properly initialized.")),
        }
    }
}

impl OpenDatabase {
    /// Calls `act` in a transaction, which is rolled back after an error.
    fn in_transaction<T>(&mut self, act: impl FnOnce(&mut OpenDatabase) -> Result<T>) -> Result<T> {
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
        let result = act(self).and_then(|value| {
            self.connection.execute_batch("COMMIT").map_err(failed)?;
            Ok(value)
        });
        if result.is_err() {
            // The first error is the one to report.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        result
    }

    /// Returns the id of a tag of this run. The rows of the user, the experiment, the run and the tag are written at the
    /// first use of each.
    fn tag(&mut self, settings: &Settings, time: f64, tagged: &TaggedTensor) -> Result<i64> {
        self.start_run(settings, time)?;
        if let Some(&tag) = self.tags.get(&tagged.tag) {
            return Ok(tag);
        }
        let (run, metadata) = (self.run.map(|run| run.id), &tagged.metadata);
        let tag = self.in_transaction(|open| {
            let id = open.ids.next(&open.connection)?;
            let description = params![id, text(&metadata.description)];
            open.execute("INSERT OR REPLACE INTO Descriptions (id, description) VALUES (?, ?)", description)?;
            open.execute(
                "INSERT INTO Tags (run_id, tag_id, tag_name, inserted_time, display_name, plugin_name, plugin_data) \
                 VALUES (?, ?, ?, ?, ?, ?, ?)",
                params![
                    run,
                    id,
                    text(&tagged.tag),
                    now(),
                    text(&metadata.display_name),
                    text(&metadata.plugin),
                    blob(&metadata.plugin_data)
                ],
            )?;
            Ok(id)
        })?;
        self.tags.insert(tagged.tag.clone(), tag);
        Ok(tag)
    }

    fn execute(&self, statement: &str, values: impl rusqlite::Params) -> Result<()> {
        self.connection.execute(statement, values).map(|_| ()).map_err(failed)
    }

    /// Writes the rows of the run and of its experiment and user, unless they exist, and the times at which run and
    /// experiment started if `time` is earlier.
    fn start_run(&mut self, settings: &Settings, time: f64) -> Result<()> {
        if settings.run.is_empty() {
            return Ok(());
        }
        let (user, experiment, run) = (self.user, self.experiment, self.run);
        let is_known = |row: Option<Started>| row.is_some_and(|row| row.time <= time);
        if is_known(run) && (settings.experiment.is_empty() || is_known(experiment)) {
            return Ok(());
        }
        let started = self.in_transaction(|open| {
            let (user, experiment) = match settings.experiment.is_empty() {
                true => (user, None),
                false => {
                    let user = match user {
                        None if !settings.user.is_empty() => Some(open.user(&settings.user)?),
                        known => known,
                    };
                    let known = match experiment {
                        Some(experiment) => experiment,
                        None => open.experiment(&settings.experiment, user, time)?,
                    };
                    (user, Some(open.started_by("Experiments", "experiment_id", known, time)?))
                }
            };
            let known = match run {
                Some(run) => run,
                None => open.run(&settings.run, experiment.map(|row| row.id), time)?,
            };
            Ok((user, experiment, open.started_by("Runs", "run_id", known, time)?))
        })?;
        (self.user, self.experiment, self.run) = (started.0, started.1, Some(started.2));
        Ok(())
    }

    /// Returns the id of the user of this name.
    fn user(&mut self, name: &[u8]) -> Result<i64> {
        let query = "SELECT user_id FROM Users WHERE user_name = ?";
        let found = self.connection.query_row(query, [text(name)], |row| row.get(0)).optional();
        if let Some(id) = found.map_err(failed)? {
            return Ok(id);
        }
        let id = self.ids.next(&self.connection)?;
        self.execute(
            "INSERT INTO Users (user_id, user_name, inserted_time) VALUES (?, ?, ?)",
            params![id, text(name), now()],
        )?;
        Ok(id)
    }

    /// Returns the experiment of this name; one that does not exist starts at `time`.
    fn experiment(&mut self, name: &[u8], user: Option<i64>, time: f64) -> Result<Started> {
        let found = self.connection.query_row(
            "SELECT experiment_id, started_time FROM Experiments WHERE user_id IS ? AND experiment_name = ?",
            params![user, text(name)],
            |row| Ok(Started { id: row.get(0)?, time: row.get::<_, Option<f64>>(1)?.unwrap_or(0.0) }),
        );
        if let Some(found) = found.optional().map_err(failed)? {
            return Ok(found);
        }
        let id = self.ids.next(&self.connection)?;
        self.execute(
            "INSERT INTO Experiments (user_id, experiment_id, experiment_name, inserted_time, started_time, is_watching) \
             VALUES (?, ?, ?, ?, ?, 0)",
            params![user, id, text(name), now(), time],
        )?;
        Ok(Started { id, time })
    }

    /// Writes the row of a run, which replaces the experiment's run of the same name.
    fn run(&mut self, name: &[u8], experiment: Option<i64>, time: f64) -> Result<Started> {
        let id = self.ids.next(&self.connection)?;
        self.execute(
            "INSERT OR REPLACE INTO Runs (experiment_id, run_id, run_name, inserted_time, started_time) \
             VALUES (?, ?, ?, ?, ?)",
            params![experiment, id, text(name), now(), time],
        )?;
        Ok(Started { id, time })
    }

    /// Writes the time at which a row of `table` started if `time` is earlier, and returns the row with that time.
    fn started_by(&self, table: &str, id_column: &str, row: Started, time: f64) -> Result<Started> {
        if time >= row.time {
            return Ok(row);
        }
        let statement = format!("UPDATE {table} SET started_time = ? WHERE {id_column} = ?");
        self.execute(&statement, params![time, row.id])?;
        Ok(Started { time, ..row })
    }

    /// Writes a tensor, which replaces the tag's tensor of the same step.
    fn write_tensor(&mut self, tag: i64, time: f64, step: i64, tensor: &Tensor) -> Result<()> {
        self.execute(
            "DELETE FROM TensorStrings WHERE tensor_rowid IN (SELECT rowid FROM Tensors WHERE series = ? AND step = ?)",
            params![tag, step],
        )?;
        let dims: Vec<String> = tensor.shape().dims().iter().map(ToString::to_string).collect();
        let strings = match tensor.dtype() {
            DType::String => Some(tensor.as_strings()?),
            _ => None,
        };
        let data = match strings {
            Some([string]) if dims.is_empty() => Some(&string[..]),
            Some(_) => None,
            None => Some(tensor.bytes()?),
        };
        self.execute(
            "INSERT OR REPLACE INTO Tensors (series, step, dtype, computed_time, shape, data) VALUES (?, ?, ?, ?, ?, ?)",
            params![tag, step, tensor.dtype().number(), time, dims.join(","), data.map(blob)],
        )?;
        let row = self.connection.last_insert_rowid();
        for (i, string) in strings.unwrap_or_default().iter().enumerate().filter(|_| !dims.is_empty()) {
            self.execute(
                "INSERT INTO TensorStrings (tensor_rowid, idx, data) VALUES (?, ?, ?)",
                params![row, i as i64, blob(string)],
            )?;
        }
        Ok(())
    }
}

impl Drop for SummaryDatabase {
    fn drop(&mut self) {
        if let Some(open) = self.open.get_mut()
            && let Some(run) = open.run
            // The thread that drops the last writer does not wait for other processes.
            && open.connection.busy_timeout(Duration::ZERO).is_ok()
            && let Err(error) =
                open.execute("UPDATE Runs SET finished_time = ? WHERE run_id = ?", params![now(), run.id])
        {
            tracing::warn!("the end of run {} was not written: {error}", run.id);
        }
    }
}

impl fmt::Debug for SummaryDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SummaryDatabase({})", self.settings.path.display())
    }
}
