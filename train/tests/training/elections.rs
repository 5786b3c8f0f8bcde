//! Tests of elections in a folder, and of sessions whose chief is elected.

use super::Fallible;
use super::sessions::Folder;
use anabranch_train::{
    Error, FileStore, Hook, HookContext, Initializer, LeaderStore, Master, MonitoredConfig, MonitoredSession,
    Optimizer, Period, Retention, Role, RunValues, Saver, Strategy, Training, Variables, hooks,
};
use client::{Server, ServerConfig};
use graph::{Code, DType, Graph, Scope};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn store(folder: &Folder, lease: Duration) -> Fallible<FileStore> {
    Ok(FileStore::new(&folder.0, "job", lease)?)
}

#[test]
fn one_store_leads_and_terms_rise() -> Fallible {
    let folder = Folder::new("one-leads");
    let (a, b) = (store(&folder, LONG)?, store(&folder, LONG)?);
    assert_eq!((a.campaign()?, b.campaign()?), (Some(1), None));
    assert_eq!((a.keep(1)?, b.keep(1)?), (true, false));
    // A leader that campaigns again gets a higher term.
    assert_eq!((a.campaign()?, b.campaign()?), (Some(2), None));
    assert_eq!((a.keep(1)?, a.keep(2)?), (false, true));
    Ok(())
}

#[test]
fn terms_do_not_fall_where_their_files_are_removed() -> Fallible {
    let folder = Folder::new("terms");
    let a = store(&folder, LONG)?;
    assert_eq!((a.campaign()?, a.campaign()?), (Some(1), Some(2)));
    std::fs::remove_file(folder.0.join("job.2"))?;
    assert_eq!(a.campaign()?, Some(3));
    Ok(())
}

#[test]
fn a_leader_that_resigns_or_dies_is_replaced_at_once() -> Fallible {
    let folder = Folder::new("resigns");
    let (a, b) = (store(&folder, LONG)?, store(&folder, LONG)?);
    assert_eq!(a.campaign()?, Some(1));
    a.resign(1)?;
    assert_eq!((b.campaign()?, a.keep(1)?, a.campaign()?), (Some(2), false, None));
    // Dropping the store unlocks its term's file, as the end of its process would.
    drop(b);
    assert_eq!(a.campaign()?, Some(3));
    Ok(())
}

#[test]
fn a_leader_that_does_not_renew_its_lease_is_deposed() -> Fallible {
    let folder = Folder::new("silent");
    let lease = Duration::from_millis(50);
    let (a, b) = (store(&folder, lease)?, store(&folder, lease)?);
    assert_eq!((a.campaign()?, b.campaign()?), (Some(1), None));
    let started = Instant::now();
    let term = loop {
        match b.campaign()? {
            Some(term) => break term,
            None if started.elapsed() > LONG => return Err("no other store became the leader".into()),
            None => thread::park_timeout(Duration::from_millis(1)),
        }
    };
    assert!(started.elapsed() >= lease && term == 2);
    assert_eq!((a.keep(1)?, a.campaign()?), (false, None));
    Ok(())
}

#[test]
fn of_concurrent_candidates_one_leads_in_each_term() -> Fallible {
    let folder = Folder::new("many");
    let won: Vec<i64> = thread::scope(|scope| {
        let campaign_repeatedly = || -> Result<Vec<i64>, Error> {
            let mut won = Vec::new();
            for _ in 0..50 {
                let store = FileStore::new(&folder.0, "job", LONG)?;
                won.extend(store.campaign()?);
            }
            Ok(won)
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(campaign_repeatedly)).collect();
        let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Ok(Vec::new())));
        joined.collect::<Result<Vec<_>, _>>().map(|all| all.concat())
    })?;
    let mut distinct = won.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(!won.is_empty() && distinct.len() == won.len(), "{won:?}");
    Ok(())
}

#[test]
fn failures_name_the_file() -> Fallible {
    let folder = Folder::new("no-folder");
    let leader = store(&folder, LONG)?;
    assert_eq!(leader.campaign()?, Some(1));
    fs::remove_dir_all(&folder.0)?;
    let gone = leader.campaign().err().map(|e| e.to_string()).unwrap_or_default();
    assert!(gone.contains(&folder.0.display().to_string()), "{gone}");
    fs::write(&folder.0, "a file")?;
    let no_folder = store(&folder, LONG).err().map(|e| e.to_string()).unwrap_or_default();
    fs::remove_file(&folder.0)?;
    assert!(no_folder.contains(&folder.0.display().to_string()), "{no_folder}");
    let name = FileStore::new(&folder.0, "a/b", LONG).err().map(|e| e.code());
    assert_eq!(name, Some(Code::InvalidArgument));
    Ok(())
}

struct Model {
    graph: Graph,
    training: Training,
    saver: Arc<Saver>,
}

fn model() -> Fallible<Model> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::gradient_descent(0.1);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
        scope.square(scope.sub(w.value, scope.constant(1.0f32)))
    })?;
    let saver = Arc::new(Saver::new(&scope, &variables.all(), Retention::default()));
    Ok(Model { graph: scope.finish()?, training, saver })
}

/// A hook that appends its replica's name and the step to a file.
#[derive(Debug)]
struct Notes(&'static str, std::path::PathBuf);

impl Hook for Notes {
    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> anabranch_train::Result<()> {
        let before = fs::read_to_string(&self.1).unwrap_or_default();
        let written =
            fs::write(&self.1, format!("{before}{} {} ", self.0, run.global_step.unwrap_or_default()));
        written.map_err(|e| Error::Graph(graph::Error::invalid(e.to_string())))
    }
}

fn replica(
    name: &'static str,
    server: &Arc<Server>,
    folder: &Path,
) -> Fallible<(MonitoredSession, Training)> {
    let Model { graph, training, saver } = model()?;
    let store = FileStore::new(folder, "job", LONG)?;
    let config = MonitoredConfig {
        role: Role::Elected(Arc::new(store)),
        checkpoint_folder: Some(folder.to_owned()),
        ready_deadline: LONG,
        ..MonitoredConfig::default()
    };
    let save = hooks::CheckpointSaver::new(saver.clone(), folder, training.global_step, Period::Steps(1));
    let notes = Notes(name, folder.join("notes"));
    let all: Vec<Box<dyn Hook>> =
        vec![Box::new(hooks::ChiefOnly::new(save)), Box::new(hooks::ChiefOnly::new(notes))];
    let master = Master::InProcess(server.clone());
    let session = MonitoredSession::new(master, graph, training.clone(), Some(saver), all, config)?;
    Ok((session, training))
}

#[test]
fn a_waiting_replica_takes_over_the_chiefs_hooks() -> Fallible {
    let folder = Folder::new("takes-over");
    let server = Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?);
    let (mut a, training) = replica("a", &server, &folder.0)?;
    let (mut b, _) = replica("b", &server, &folder.0)?;
    a.run(&[], &[], &[training.train])?;
    b.run(&[], &[], &[training.train])?;
    assert_eq!((a.recoveries(), b.recoveries()), (0, 0));
    drop(a);
    let started = Instant::now();
    while b.recoveries() == 0 && started.elapsed() < LONG {
        b.run(&[], &[], &[training.train])?;
    }
    assert_eq!(b.recoveries(), 1);
    let step = b.run(&[], &[training.global_step], &[])?.ok_or("training has ended")?[0].item::<i64>()?;
    b.run(&[], &[], &[training.train])?;
    let notes = fs::read_to_string(folder.0.join("notes"))?;
    // The hook of `b` did not run in the step that `b` did before it was the chief.
    assert!(
        notes.starts_with("a 1 b ") && !notes.contains("b 2 ") && notes.contains(&format!("b {} ", step + 1)),
        "{notes}"
    );
    assert!(folder.0.join(format!("model.ckpt-{}.index", step + 1)).exists());
    b.finish()?;
    Ok(())
}
