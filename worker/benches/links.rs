//! The time to send a tensor from one worker to another, for each transport: a step of two partitions, one of
//! which sends a variable to the other. For comparison: a copy in memory, and a plain blocking socket.

#[path = "../tests/it/cluster/mod.rs"]
mod cluster;

use anabranch_worker::Transport;
use cluster::{LONG, Session, Task, Test};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use graph::{Graph, Tensor};
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use tokio::runtime::Runtime;

/// The allocator that the project's binaries use too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [usize; 3] = [4, 16_000_000, 100_000_000];

/// A cluster of two tasks, and the step that is measured: the first task fetches a variable of the second.
struct Pull {
    tasks: Vec<Task>,
    session: Session,
    registered: cluster::Registered,
    step: i64,
}

impl Pull {
    async fn new(transport: Transport, bytes: usize) -> Test<Pull> {
        let tasks = cluster::cluster(2, |config| config.transport = transport)?;
        let links = tasks.iter().map(|t| (t.worker.task().clone(), t.worker.link())).collect();
        let session = Session::with_links(links).await?;
        let len = bytes / 4;
        let graph = Graph::from_text(&format!(
            "v = VariableV2[dtype=float, shape=<{len}>] @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
             d = Placeholder[dtype=int32, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
             x = Placeholder[dtype=float, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
             f = Fill[T=float](d, x) @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
             init = Assign[T=float](v, f) @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
             y = Identity[T=float](v) @\"/job:w/replica:0/task:1/device:CPU:0\"\n",
        ))?;
        let init = session.register(&graph, &["d", "x"], &[], &["init"]).await?;
        // A kernel of the worker makes the variable's value, so that its memory can be shared with the other
        // process.
        let fed = [("d:0", Tensor::vector(&[len as i32])?), ("x:0", Tensor::scalar(1f32))];
        session.run(&init, 1, &fed, &[]).await?;
        let registered = session.register(&graph, &[], &["y"], &[]).await?;
        let mut pull = Pull { tasks, session, registered, step: 10 };
        let start = Instant::now();
        pull.run().await?;
        while transport != Transport::Grpc && pull.tasks[1].worker.links().0 == 0 && start.elapsed() < LONG {
            pull.run().await?;
        }
        Ok(pull)
    }

    async fn run(&mut self) -> Test {
        self.step += 1;
        black_box(self.session.run(&self.registered, self.step, &[], &["y:0"]).await?);
        Ok(())
    }
}

fn transfers(criterion: &mut Criterion) {
    let Ok(runtime) = Runtime::new() else { return };
    for bytes in SIZES {
        let mut group = criterion.benchmark_group(format!("{bytes} bytes"));
        group.throughput(Throughput::Bytes(bytes as u64)).sample_size(20);
        let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
        group.bench_function("copy", |b| b.iter(|| black_box(&mut to).copy_from_slice(black_box(&from))));
        group.bench_function("socket", |b| b.iter_custom(|rounds| socket(bytes, rounds).unwrap_or_default()));
        for transport in [Transport::Shm, Transport::Tcp, Transport::Grpc] {
            let made = runtime.block_on(Pull::new(transport, bytes));
            let Ok(mut pull) = made.inspect_err(|error| eprintln!("{transport}: {error}")) else { continue };
            group.bench_function(BenchmarkId::new("step", transport), |b| {
                b.iter(|| runtime.block_on(pull.run()).unwrap_or_else(|e| panic!("{e}")));
            });
        }
        group.finish();
    }
}

/// Returns the time of `rounds` requests of one byte, each answered by `bytes` bytes, between two threads
/// over a TCP socket.
fn socket(bytes: usize, rounds: u64) -> std::io::Result<std::time::Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (value, mut asked) = (vec![1u8; bytes], [0]);
            // The loop ends when the client closes the connection.
            while server.read_exact(&mut asked).and_then(|()| server.write_all(&value)).is_ok() {}
        });
        let mut place = vec![0u8; bytes];
        let mut round = || client.write_all(&[1]).and_then(|()| client.read_exact(&mut place));
        round()?;
        let start = Instant::now();
        (0..rounds).try_for_each(|_| round())?;
        let took = start.elapsed();
        drop(client);
        Ok(took)
    })
}

criterion_group!(benches, transfers);
criterion_main!(benches);
