//! Checkpoints in object stores. The tests use the store in the environment variable `STORE`, or else the store in
//! memory. The test `all_tests_pass_on_s3` runs all other tests again with an S3 server from PyPI.

use crate::support::cluster::{Cluster, free_port};
use crate::support::{Fallible, environment};
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{Code, DType, Graph, NodeId, Output, Scope, Shape, Tensor};
use anabranch::train::{self, Initializer, Retention, Saver, Variable, Variables};
use checkpoint::bundle::{self, MergeOptions, Reader, Writer};
use checkpoint::{pattern, store};
use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const LONG: Duration = Duration::from_secs(60);

/// Returns the path of a folder in the store.
fn folder(name: &str) -> PathBuf {
    let store = env::var("STORE").unwrap_or_else(|_| "memory://tests".to_owned());
    Path::new(&store).join(name)
}

fn code(result: checkpoint::Result<impl Sized>) -> Option<Code> {
    result.err().map(|e| e.code())
}

/// Returns the sorted names of the files in a folder.
fn listed(folder: &Path) -> Fallible<Vec<String>> {
    let names = store::store_of(folder)?.list(folder)?;
    let mut names: Vec<String> = names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[test]
fn file_appears_complete_when_it_is_committed() -> Fallible {
    let folder = folder("files");
    let name = folder.join("a/file");
    let files = store::store_of(&name)?;
    assert_eq!(code(files.open(&name)), Some(Code::NotFound));
    assert!(!files.exists(&name)?);
    files.delete(&name)?;

    // The first file is written in several parts, the last of them smaller; small files then replace it.
    let large: Vec<u8> = (0..(40 << 20) + 5u32).map(|i| (i % 251) as u8).collect();
    for content in [&large[..], b"small", b""] {
        let mut file = files.create(&name)?;
        for piece in content.chunks(7 << 20) {
            file.write(piece)?;
        }
        file.sync()?;
        assert!(!files.exists(&name)? || files.read(&name)? != content, "before it is committed");
        file.commit()?;
        assert!(files.read(&name)? == content);
    }
    // A new version of a file that is dropped without a commit leaves the old content.
    let mut file = files.create(&name)?;
    file.write(&large)?;
    drop(file);
    assert_eq!(files.read(&name)?, b"");
    assert_eq!(listed(&folder.join("a"))?, ["file"]);
    assert!(SystemTime::now().duration_since(files.modified(&name)?).is_ok_and(|age| age < LONG));
    files.delete(&name)?;
    assert!(!files.exists(&name)?);
    Ok(())
}

#[test]
fn files_are_read_at_any_offset() -> Fallible {
    let name = folder("parts").join("file");
    let bytes: Vec<u8> = (0..(20 << 20) + 3u32).map(|i| (i % 241) as u8).collect();
    store::write(&name, &bytes)?;
    let mut file = store::store_of(&name)?.open(&name)?;
    assert_eq!(file.size()?, bytes.len() as u64);
    let (end, window) = (bytes.len(), 4 << 20);
    for (start, stop) in [
        (0, 0),
        (0, 10),
        (5, 9),
        (window - 2, window + 2),
        (3, 3 + window),
        (1, end),
        (end - 3, end),
        (end, end),
    ] {
        let mut part = vec![0; stop - start];
        file.read_at(start as u64, &mut part)?;
        assert!(part == bytes[start..stop], "{start} to {stop}");
    }
    for start in [end - 1, end, usize::MAX] {
        assert_eq!(code(file.read_at(start as u64, &mut [0; 2])), Some(Code::DataLoss), "{start}");
    }
    Ok(())
}

#[test]
fn files_are_found_by_patterns() -> Fallible {
    let folder = folder("patterns");
    for name in ["x1/a", "x1/b", "x2/a", "y/a"] {
        store::write(folder.join(name), b"")?;
    }
    let found = |pattern: &str| -> Fallible<Vec<PathBuf>> {
        let names = pattern::matching(&folder.join(pattern).display().to_string())?;
        Ok(names.into_iter().map(PathBuf::from).collect())
    };
    let paths = |names: &[&str]| names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
    assert_eq!(found("x*/a")?, paths(&["x1/a", "x2/a"]));
    assert_eq!(found("x1/a")?, paths(&["x1/a"]));
    assert_eq!(found("*")?, paths(&["x1", "x2", "y"]));
    assert_eq!(found("x1/a/*")?, paths(&[]));
    assert_eq!(found("none/a")?, paths(&[]));
    Ok(())
}

fn save(prefix: &Path, name: &str, tensor: &Tensor) -> Fallible {
    let mut writer = Writer::create(prefix)?;
    writer.add(name.as_bytes(), tensor)?;
    Ok(writer.finish()?)
}

#[test]
fn bundles_are_merged() -> Fallible {
    let folder = folder("joined");
    let whole = folder.join("model-1");
    let parts = [0, 1].map(|i| folder.join(format!("model-1_temp/part-{i:05}-of-00002")));
    for (i, part) in parts.iter().enumerate() {
        save(part, &format!("v{i}"), &Tensor::scalar(i as i64))?;
    }
    bundle::merge(&parts, &whole, MergeOptions { delete_old_dirs: true, allow_missing_files: false })?;
    let mut reader = Reader::open(&whole)?;
    reader.check_extents()?;
    assert_eq!(reader.read(b"v0")?, Tensor::scalar(0i64));
    assert_eq!(reader.read(b"v1")?, Tensor::scalar(1i64));
    let files = ["model-1.data-00000-of-00002", "model-1.data-00001-of-00002", "model-1.index"];
    assert_eq!(listed(&folder)?, files);
    // A checkpoint on the local disk can be merged into one in the store.
    let local = crate::support::folder::Folder::new("store-parts")?;
    let part = local.path().join("part");
    save(&part, "v", &Tensor::scalar(5i64))?;
    bundle::merge(&[part], &whole, MergeOptions { delete_old_dirs: false, allow_missing_files: false })?;
    assert_eq!(Reader::open(&whole)?.read(b"v")?, Tensor::scalar(5i64));
    assert!(local.path().read_dir()?.next().is_none());
    Ok(())
}

#[test]
fn incomplete_checkpoint_is_never_the_latest() -> Fallible {
    let folder = folder("torn");
    let (first, second) = (folder.join("model-1"), folder.join("model-2"));
    save(&first, "v", &Tensor::scalar(1i64))?;
    assert_eq!(train::latest_checkpoint(&folder)?, Some(first.clone()));
    // The second checkpoint has data without an index at first, and later an index whose data file is too short.
    store::write(bundle::data_file(&second, 0, 1), &[0; 8])?;
    assert_eq!(train::latest_checkpoint(&folder)?, Some(first.clone()));
    save(&second, "v", &Tensor::scalar(2i64))?;
    assert_eq!(train::latest_checkpoint(&folder)?, Some(second.clone()));
    store::write(bundle::data_file(&second, 0, 1), &[0; 7])?;
    assert_eq!(train::latest_checkpoint(&folder)?, Some(first));
    Ok(())
}

struct Model {
    graph: Graph,
    saver: Saver,
    variables: Vec<Variable>,
    next: NodeId,
    initialize: NodeId,
}

/// Builds a model with a variable on each device; a step adds 1 to both.
fn model(devices: [&str; 2]) -> Fallible<Model> {
    let scope = Scope::new();
    let on = devices.map(|device| Variables::new(&scope.device(device)));
    let variables: Vec<Variable> = (on.iter().enumerate())
        .map(|(i, on)| on.get(&format!("v{i}"), DType::Float, &[3], &Initializer::Zeros))
        .collect();
    let add = |v: &Variable| scope.assign_add_variable(v.handle, scope.constant([1.0f32; 3]));
    let next = scope.group(&variables.iter().map(add).collect::<Vec<_>>());
    let initialize = scope.group(&on.iter().map(Variables::initializer).collect::<Vec<_>>());
    let saver = Saver::new(&scope, &variables, Retention { max_to_keep: 2, every: None });
    Ok(Model { graph: scope.finish()?, saver, variables, next, initialize })
}

/// Saves three checkpoints, of which two are kept, and restores the second.
fn train_and_restore(model: &Model, session: &Session, folder: &Path) -> Fallible {
    session.run(&[], &[], &[model.initialize])?;
    for step in 1..=3 {
        session.run(&[], &[], &[model.next])?;
        model.saver.save(session, folder, "model", step)?;
    }
    assert_eq!(train::latest_checkpoint(folder)?, Some(folder.join("model-3")));
    let mut kept = vec!["checkpoint".to_owned()];
    for step in [2, 3] {
        kept.extend((0..2).map(|shard| format!("model-{step}.data-{shard:05}-of-00002")));
        kept.push(format!("model-{step}.index"));
    }
    assert_eq!(listed(folder)?, kept);
    model.saver.restore(session, &folder.join("model-2"))?;
    let values: Vec<Output> = model.variables.iter().map(|v| v.value).collect();
    for value in session.run(&[], &values, &[])? {
        assert_eq!(value, Tensor::from_slice(&[2.0f32; 3], Shape::new(&[3])?)?);
    }
    Ok(())
}

#[test]
fn local_session_saves_and_restores() -> Fallible {
    let model = model(["", "/cpu:0"])?;
    train_and_restore(&model, &Session::local(model.graph.clone())?, &folder("session"))
}

/// Saves and restores on two server processes, each of which writes its own shard.
fn servers_save_and_restore(folder: &Path) -> Fallible {
    let cluster = Cluster::start(&[("ps", 2)])?;
    let model = model(["/job:ps/task:0", "/job:ps/task:1"])?;
    let session = Session::connect(&cluster.target("ps", 0), model.graph.clone(), SessionOptions::default())?;
    train_and_restore(&model, &session, folder)
}

fn ckpt(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.arg("ckpt").args(arguments);
    command
}

#[test]
fn unresponsive_store_is_an_error_with_its_name() -> Fallible {
    // The listener never accepts a connection, so requests get no answer.
    let silent = TcpListener::bind(("127.0.0.1", 0))?;
    let address = silent.local_addr()?;
    let started = Instant::now();
    let output = ckpt(&["inspect", "s3://bucket/model-1"])
        .env("ANABRANCH_STORE_DEADLINE", "2")
        .env("AWS_ENDPOINT_URL", format!("http://{address}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        message.contains("s3://bucket/model-1.index; store s3://bucket: did not answer within 2 s"),
        "{message}"
    );
    assert!(started.elapsed() < LONG);
    Ok(())
}

#[test]
fn unknown_scheme_is_an_error_with_its_name() -> Fallible {
    let error = Reader::open("ftp://host/model-1").err().ok_or("the checkpoint was opened")?;
    assert_eq!(error.code(), Code::Unimplemented);
    let expected = "File system scheme 'ftp' not implemented (file: 'ftp://host/model-1.index')";
    assert_eq!(error.to_string(), expected);
    Ok(())
}

/// A server of the S3 protocol, killed when dropped.
struct S3(Child);

impl S3 {
    fn start(address: &str) -> Fallible<S3> {
        let python = environment::ensure_environment("s3", &["moto[server]==5.2.5"])?;
        let (host, port) = address.split_once(':').ok_or("no port")?;
        let mut command = Command::new(python);
        command.args(["-m", "moto.server", "-H", host, "-p", port]);
        let server = S3(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let deadline = Instant::now() + LONG;
        loop {
            match make_bucket(address) {
                Ok(()) => return Ok(server),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::park_timeout(Duration::from_millis(20)),
            }
        }
    }
}

fn make_bucket(address: &str) -> Fallible {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(LONG))?;
    let request = format!("PUT /bucket HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let is_made = answer.lines().next().is_some_and(|line| line.contains(" 200 "));
    if is_made { Ok(()) } else { Err(answer.into()) }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // An error is ignored, because the process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn all_tests_pass_on_s3() -> Fallible {
    if let Ok(store) = env::var("STORE") {
        return servers_save_and_restore(&Path::new(&store).join("servers"));
    }
    let address = free_port()?.to_string();
    let _server = S3::start(&address)?;
    let with_store = |mut command: Command| {
        command
            .env("STORE", "s3://bucket/tests")
            .env("AWS_ENDPOINT_URL", format!("http://{address}"))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret");
        environment::run(&mut command)
    };
    let output = with_store({
        let mut command = Command::new(env::current_exe()?);
        command.arg("stores::");
        command
    })?;
    assert!(output.contains(" passed"), "{output}");
    let output = with_store(ckpt(&["list", "s3://bucket/tests/servers"]))?;
    assert_eq!(output, "model-2: 2 tensors, 24 B\nmodel-3: 2 tensors, 24 B (newest)\n");
    with_store(ckpt(&["inspect", "--verify", "s3://bucket/tests/servers/model-3"]))?;
    Ok(())
}
