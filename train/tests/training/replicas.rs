//! Between-graph replicas: each has its own graph and session, and they share variables by name.

use super::Fallible;
use anabranch_train::{Error, Initializer, Optimizer, Strategy, Training, Variables, wait_until_initialized};
use client::{Server, ServerConfig, Session, SessionOptions};
use graph::{DType, Graph, Output, Scope};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const STEPS: i64 = 100;

struct Replica {
    graph: Graph,
    w: Output,
    training: Training,
    probes: Vec<(String, Output)>,
}

/// Builds a model that trains `w` from 0 to 3.
fn replica() -> Fallible<Replica> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let optimizer = Optimizer::gradient_descent(0.05);
    let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
        scope.square(scope.sub(w.value, scope.constant(3.0f32)))
    })?;
    let w = variables.find("w").ok_or("no variable")?.value;
    let probes = variables.are_initialized();
    Ok(Replica { graph: scope.finish()?, w, training, probes })
}

/// Runs a replica: the chief initialises the variables, other replicas wait for them.
fn run(server: &Arc<Server>, is_chief: bool) -> Fallible {
    let replica = replica()?;
    let session = Session::on_server(server, replica.graph.clone(), SessionOptions::default())?;
    if is_chief {
        session.run(&[], &[], &[replica.training.initialize])?;
    } else {
        wait_until_initialized(&session, &replica.probes, Duration::from_secs(20))?;
    }
    for _ in 0..STEPS {
        session.run(&[], &[], &[replica.training.train])?;
    }
    Ok(())
}

#[test]
fn sessions_of_one_server_share_variables() -> Fallible {
    let server = Arc::new(Server::new(ServerConfig::default())?);
    thread::scope(|scope| {
        let started = [false, true].map(|is_chief| {
            let server = &server;
            scope.spawn(move || run(server, is_chief).map_err(|e| e.to_string()))
        });
        started.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err("a replica panicked".to_owned()),
        })
    })?;
    let replica = replica()?;
    let late = Session::on_server(&server, replica.graph.clone(), SessionOptions::default())?;
    let values = late.run(&[], &[replica.w, replica.training.global_step], &[])?;
    assert!((values[0].item::<f32>()? - 3.0).abs() < 1e-3, "{values:?}");
    assert_eq!(values[1].item::<i64>()?, 2 * STEPS);
    Ok(())
}

#[test]
fn the_timeout_of_waiting_names_the_missing_variables() -> Fallible {
    let replica = replica()?;
    let session = Session::local(replica.graph.clone())?;
    let step = replica.training.variables.find("global_step").ok_or("no counter")?;
    session.run(&[], &[], &[step.initializer])?;
    let result = wait_until_initialized(&session, &replica.probes, Duration::from_millis(30));
    let Err(error @ Error::NotReady { .. }) = result else {
        return Err(format!("expected the time to be out: {result:?}").into());
    };
    let message = error.to_string();
    assert!(message.contains(" w;") && !message.contains("global_step"), "{message}");
    session.run(&[], &[], &[replica.training.initialize])?;
    wait_until_initialized(&session, &replica.probes, Duration::from_secs(20))?;
    Ok(())
}
