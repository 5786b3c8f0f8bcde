//! Tensors in IPC buffers that GPUs of other processes read, and downloaded tensors that other processes read.
//! The other process is another GPU of the same recording driver, which finds memory only by its descriptor.

use super::Fallible;
use super::software::gpu::{DEADLINE, Gpu, launching};
use super::software::recording::RecordingDriver;
use super::streams::node;
use device::DeviceTensor;
use device::gpu_options::GpuOptions;
use device::peer_buffer::{BorrowedMemory, BufferBorrow, MIN_SHARED_BYTES, PeerBuffer};
use device::shared_block::{FreeListener, MemoryKind, SharedBlock};
use device::shared_memory;
use device::shared_memory::{PeerMemory, SharedMemory};
use device::{Pool, Value};
use graph::{DType, Tensor};
use kernels::testing::run_node_on;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Smallest size of an IPC buffer, in bytes.
const WINDOW: u64 = 2 << 20;

const MEMORY: u64 = 64 << 20;

/// Two GPUs in place of the GPUs of two processes: one shares tensors, the other borrows them.
struct ProcessPair {
    lender: Gpu,
    borrower: Gpu,
}

impl ProcessPair {
    fn new(is_visible: bool) -> Fallible<ProcessPair> {
        let first = RecordingDriver::new(MEMORY);
        let second = first.another_gpu(is_visible);
        let (lender, borrower) =
            (Gpu::with_driver(first, 0, &launching())?, Gpu::with_driver(second, 0, &launching())?);
        for gpu in [&lender, &borrower] {
            drop(gpu.upload(Tensor::try_from([0i64])?)?);
        }
        lender.driver.log();
        Ok(ProcessPair { lender, borrower })
    }

    fn check_clean(&self) {
        assert_eq!(self.lender.driver.races(), Vec::<String>::new());
    }
}

/// A tensor of the lender in the form that the borrower's process gets: in an IPC buffer that is known by its
/// file descriptor.
struct Borrowed {
    tensor: DeviceTensor,
    window: Arc<PeerBuffer>,
    is_returned: Arc<AtomicBool>,
    is_unseen: Arc<AtomicBool>,
}

/// A borrow that sets one flag when it ends, and another when the borrower's GPU reports that it cannot map the
/// buffer.
struct TestLoan {
    returned: Arc<AtomicBool>,
    unseen: Arc<AtomicBool>,
}

impl BufferBorrow for TestLoan {
    fn report_no_access(&self) {
        self.unseen.store(true, Ordering::Release);
    }
}

impl Drop for TestLoan {
    fn drop(&mut self) {
        self.returned.store(true, Ordering::Release);
    }
}

/// Returns the shared block of a tensor that is in an IPC buffer.
fn block(lent: &Value) -> Fallible<&dyn SharedBlock> {
    let Value::Device(lent) = lent else { return Err(format!("{lent:?} is not on a GPU").into()) };
    Ok(lent.memory.shared_block().ok_or("nobody else sees it")?)
}

/// Returns a tensor of the lender in the form that the borrower's process gets.
fn borrowed(lent: &Value) -> Fallible<Borrowed> {
    let block = block(lent)?;
    assert_eq!(block.memory_kind(), MemoryKind::Device);
    let window = PeerBuffer::new(block.descriptor()?.into(), block.len());
    borrowed_from(&window, lent)
}

/// Like [`borrowed`], for a tensor in an IPC buffer that the borrower's process has mapped already.
fn borrowed_from(window: &Arc<PeerBuffer>, lent: &Value) -> Fallible<Borrowed> {
    let Value::Device(DeviceTensor { dtype, shape, memory }) = lent else { return Err("not a GPU's".into()) };
    let (is_returned, is_unseen) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let loan = Box::new(TestLoan { returned: is_returned.clone(), unseen: is_unseen.clone() });
    let memory = BorrowedMemory::new(window.clone(), memory.len(), loan).ok_or("it is longer")?;
    let tensor = DeviceTensor { dtype: *dtype, shape: shape.clone(), memory: Arc::new(memory) };
    Ok(Borrowed { tensor, window: window.clone(), is_returned, is_unseen })
}

fn numbers(from: f32) -> Fallible<Tensor> {
    let numbers: Vec<f32> = (0..MIN_SHARED_BYTES / 4).map(|i| from + i as f32).collect();
    Ok(Tensor::vector(&numbers)?)
}

/// Waits until `flag` is set, by the waiter thread that drops the source of a copy.
fn wait_for(flag: &AtomicBool) -> Fallible {
    let end = std::time::Instant::now() + DEADLINE;
    while !flag.load(Ordering::Acquire) {
        if std::time::Instant::now() > end {
            return Err("what was borrowed is not returned".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

#[test]
fn other_process_copies_a_lent_tensor_into_its_memory() -> Fallible {
    let pair = ProcessPair::new(true)?;
    let tensor = numbers(1.0)?;
    let here = pair.lender.upload(tensor.clone())?;
    pair.lender.driver.log();
    let lent = pair.lender.lend(&here)?;
    assert_eq!(
        pair.lender.driver.log(),
        ["share 2097152", "wait 3", "copy 262144 on 3", "mark 3"],
        "on the stream for other GPUs, behind the copy that filled the tensor"
    );
    let borrowed = borrowed(&lent)?;
    assert!(pair.borrower.device.processor().can_access(&borrowed.window));
    let there = pair.borrower.adopt(&borrowed.tensor.clone().into())?;
    assert_eq!(
        pair.lender.driver.log(),
        ["map 2097152", "allocate 262144 on 6", "copy 262144 on 6", "mark 6"],
        "mapped once, when it was first looked at"
    );
    let is_returned = borrowed.is_returned.clone();
    drop(borrowed);
    wait_for(&is_returned)?;
    assert_eq!(pair.borrower.download(there)?, tensor);
    // The lender may change its tensor, because the borrower reads a copy in an IPC buffer.
    let exp = run_node_on(&pair.lender.device, &node("Neg", DType::Float)?, vec![here])?;
    drop((exp, lent));
    assert_eq!((pair.lender.driver.used(), pair.borrower.driver.used()), (WINDOW, 0));
    pair.check_clean();
    Ok(())
}

#[test]
fn returned_ipc_buffer_is_reused_and_mapped_once() -> Fallible {
    let pair = ProcessPair::new(true)?;
    let mut known: Option<(u64, Arc<PeerBuffer>)> = None;
    for turn in 0..20u8 {
        let tensor = numbers(f32::from(turn))?;
        let lent = pair.lender.lend(&pair.lender.upload(tensor.clone())?)?;
        let id = block(&lent)?.sharing().id();
        let borrowed = match &known {
            Some((known, window)) => {
                assert_eq!(*known, id);
                borrowed_from(window, &lent)?
            }
            None => borrowed(&lent)?,
        };
        known = Some((id, borrowed.window.clone()));
        let there = pair.borrower.adopt(&borrowed.tensor.clone().into())?;
        let is_returned = borrowed.is_returned.clone();
        drop(borrowed);
        wait_for(&is_returned)?;
        drop(lent);
        assert_eq!(pair.borrower.download(there)?, tensor);
    }
    let log = pair.lender.driver.log();
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((count("share"), count("map"), count("unmap")), (1, 1, 0));
    drop(known);
    assert_eq!(pair.lender.log_until("unmap")?, ["unmap 2097152"]);
    pair.check_clean();
    Ok(())
}

#[test]
fn lent_tensor_can_be_downloaded_by_the_borrower() -> Fallible {
    let pair = ProcessPair::new(true)?;
    let tensor = numbers(7.0)?;
    let lent = pair.lender.lend(&pair.lender.upload(tensor.clone())?)?;
    let Borrowed { tensor: there, is_returned, .. } = borrowed(&lent)?;
    assert_eq!(pair.borrower.download(there.into())?, tensor);
    wait_for(&is_returned)?;
    // The lender itself may read the IPC buffer too, for a receiver over another transport.
    assert_eq!(pair.lender.download(lent)?, tensor);
    pair.check_clean();
    Ok(())
}

#[test]
fn unmappable_ipc_buffer_is_reported() -> Fallible {
    let pair = ProcessPair::new(false)?;
    let lent = pair.lender.lend(&pair.lender.upload(numbers(1.0)?)?)?;
    let borrowed = borrowed(&lent)?;
    assert!(!pair.borrower.device.processor().can_access(&borrowed.window));
    assert!(!borrowed.is_unseen.load(Ordering::Acquire));
    let error = pair.borrower.adopt(&borrowed.tensor.clone().into()).err().ok_or("it is seen")?.to_string();
    assert!(error.contains("no memory to be mapped"), "{error}");
    assert!(borrowed.is_unseen.load(Ordering::Acquire), "its lender goes on lending");
    assert_eq!(pair.borrower.driver.used(), 0);
    // A buffer that is shorter than announced to the borrower cannot be mapped.
    let pair = ProcessPair::new(true)?;
    let lent = pair.lender.lend(&pair.lender.upload(numbers(1.0)?)?)?;
    let window = PeerBuffer::new(block(&lent)?.descriptor()?.into(), 2 * WINDOW as usize);
    assert!(!pair.borrower.device.processor().can_access(&window));
    let Value::Device(DeviceTensor { memory, .. }) = &lent else { return Err("not a GPU's".into()) };
    let loan = TestLoan { returned: Arc::default(), unseen: Arc::default() };
    assert!(BorrowedMemory::new(window, 2 * WINDOW as usize + memory.len(), Box::new(loan)).is_none());
    Ok(())
}

#[test]
fn idle_ipc_buffers_are_freed_for_tensors_and_full_memory_uses_the_host() -> Fallible {
    let driver = RecordingDriver::new(MEMORY);
    let gpu = Gpu::with_driver(driver, 0, &launching())?;
    let limit = gpu.device.attributes().memory_limit;
    let tensor = numbers(1.0)?;
    drop(gpu.lend(&gpu.upload(tensor.clone())?)?);
    assert_eq!(gpu.driver.used(), WINDOW, "kept for the next");
    // A tensor of `rest` bytes leaves less memory than an IPC buffer needs, so the idle buffer must be freed.
    let rest = usize::try_from(limit - WINDOW / 2)?;
    let large = gpu.upload(Tensor::zeros(DType::UInt8, [rest].try_into()?)?)?;
    assert_eq!(gpu.driver.used(), rest as u64);
    let here = gpu.upload(tensor.clone())?;
    let Value::Host(lent) = gpu.lend(&here)? else { return Err("there is no room for it".into()) };
    assert_eq!(lent, tensor);
    drop((large, here));
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

/// A listener in place of a process that has a descriptor of the block and may read it.
struct DescriptorReader;

impl FreeListener for DescriptorReader {
    fn freed(&self, _: u64) {}
}

#[test]
fn allocation_waits_briefly_for_a_closed_ipc_buffer() -> Fallible {
    let pair = ProcessPair::new(true)?;
    let all = Tensor::zeros(DType::UInt8, [usize::try_from(MEMORY)?].try_into()?)?;
    let reader: Arc<dyn FreeListener> = Arc::new(DescriptorReader);
    let look = || -> Fallible<Arc<PeerBuffer>> {
        let lent = pair.lender.lend(&pair.lender.upload(numbers(1.0)?)?)?;
        block(&lent)?.sharing().tell(Arc::downgrade(&reader));
        let window = borrowed(&lent)?.window;
        assert!(pair.borrower.device.processor().can_access(&window));
        pair.lender.driver.log();
        Ok(window)
    };
    let window = look()?;
    std::thread::scope(|scope| -> Fallible {
        let uploaded = scope.spawn(|| pair.lender.upload(all.clone()).map(drop).map_err(|e| e.to_string()));
        // The allocation is retried several times while the borrower has the buffer mapped.
        (0..3).try_for_each(|_| pair.lender.log_until("no room for").map(drop))?;
        drop(window);
        Ok(uploaded.join().map_err(|_| "it panicked")??)
    })?;
    // A thread of the worker's shared pool fails at once instead of waiting.
    let window = look()?;
    let refused = Pool::with_inline_tasks(|| pair.lender.upload(all.clone()).is_err());
    let log = pair.lender.driver.log();
    assert_eq!((refused, log.iter().filter(|line| line.starts_with("no room for")).count()), (true, 2));
    drop(window);
    // If the buffer stays mapped, the wait ends after a timeout.
    let window = look()?;
    let error = pair.lender.upload(all).err().ok_or("there is no room")?.to_string();
    assert!(error.contains("OOM"), "{error}");
    drop(window);
    pair.check_clean();
    Ok(())
}

#[test]
fn ipc_buffer_uses_trimmed_memory_but_not_reserved_memory() -> Fallible {
    let gpu = Gpu::with_driver(RecordingDriver::new(MEMORY), 0, &launching())?;
    let most = usize::try_from(MEMORY - WINDOW / 2)?;
    drop(gpu.upload(Tensor::zeros(DType::UInt8, [most].try_into()?)?)?);
    let here = gpu.upload(numbers(1.0)?)?;
    gpu.driver.log();
    assert!(matches!(gpu.lend(&here)?, Value::Device(_)));
    let log = gpu.driver.log();
    assert_eq!(log[..3], ["no room to share 2097152", "trim", "share 2097152"]);
    // With a reserved pool there is no memory for IPC buffers, and a failed allocation is not retried at once.
    let gpu = Gpu::with_driver(
        RecordingDriver::new(MEMORY),
        0,
        &GpuOptions { allow_growth: false, ..launching() },
    )?;
    let here = gpu.upload(numbers(1.0)?)?;
    gpu.driver.log();
    for _ in 0..3 {
        assert!(matches!(gpu.lend(&here)?, Value::Host(_)));
    }
    let log = gpu.driver.log();
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((count("no room to share"), count("trim")), (1, 0));
    Ok(())
}

#[test]
fn ipc_buffers_are_limited_to_a_share_of_the_memory() -> Fallible {
    let gpu = Gpu::with_driver(RecordingDriver::new(MEMORY), 0, &launching())?;
    let room = gpu.device.attributes().memory_limit / 8 / WINDOW;
    let here = gpu.upload(numbers(1.0)?)?;
    let lent: Vec<Value> = (0..room + 2).map(|_| gpu.lend(&here)).collect::<Fallible<_>>()?;
    let on_device = lent.iter().filter(|value| matches!(value, Value::Device(_))).count();
    assert_eq!((on_device as u64, gpu.driver.used()), (room, room * WINDOW + MIN_SHARED_BYTES as u64));
    drop(lent);
    // A larger buffer takes the memory of idle smaller buffers.
    let large = gpu.upload(Tensor::zeros(DType::UInt8, [2 * WINDOW as usize].try_into()?)?)?;
    assert!(matches!(gpu.lend(&large)?, Value::Device(_)));
    drop((large, here));
    assert!(gpu.driver.used() <= room * WINDOW, "{} bytes", gpu.driver.used());
    assert_eq!(gpu.driver.races(), Vec::<String>::new());
    Ok(())
}

#[test]
fn abandoned_ipc_buffer_is_not_reused_and_stays_readable() -> Fallible {
    let pair = ProcessPair::new(true)?;
    let tensor = numbers(3.0)?;
    let lent = pair.lender.lend(&pair.lender.upload(tensor.clone())?)?;
    let borrowed = borrowed(&lent)?;
    assert!(pair.borrower.device.processor().can_access(&borrowed.window));
    let first = block(&lent)?.sharing().id();
    block(&lent)?.sharing().set_read_only();
    drop(lent);
    let again = pair.lender.lend(&pair.lender.upload(numbers(9.0)?)?)?;
    assert_ne!(block(&again)?.sharing().id(), first);
    let there = pair.borrower.adopt(&borrowed.tensor.clone().into())?;
    assert_eq!(pair.borrower.download(there)?, tensor);
    drop(again);
    assert_eq!(pair.lender.driver.used(), 2 * WINDOW, "one for the next, one of who still reads it");
    drop(borrowed);
    pair.lender.driver.log();
    pair.check_clean();
    Ok(())
}

#[test]
fn downloads_are_readable_by_other_processes_in_place() -> Fallible {
    shared_memory::install();
    let gpu = Gpu::with_driver(RecordingDriver::new(MEMORY), 0, &launching())?;
    let tensor = numbers(5.0)?;
    let on_host = gpu.download(gpu.upload(tensor.clone())?)?;
    let region = |tensor: &Tensor| -> Fallible<(u64, PeerMemory)> {
        let buffer = tensor.buffer().ok_or("no buffer")?;
        let (memory, _) = buffer.region().and_then(SharedMemory::of).ok_or("nobody else reads it")?;
        assert!(memory.len() >= tensor.num_bytes());
        let peer = PeerMemory::map(&memory.descriptor()?.into(), memory.len())?;
        Ok((memory.sharing().id(), peer))
    };
    let (id, peer) = region(&on_host)?;
    assert_eq!(&peer.bytes()[..tensor.num_bytes()], tensor.bytes()?);
    // The downloaded tensor is uploaded directly from its pinned memory, which is then reused.
    assert_eq!(gpu.download(gpu.upload(on_host.clone())?)?, tensor);
    drop(on_host);
    let on_host = loop {
        // The memory is reused only when the thread that waits for the upload has released it.
        let on_host = gpu.download(gpu.upload(tensor.clone())?)?;
        if region(&on_host)?.0 == id {
            break on_host;
        }
    };
    // The block is marked as memory that a vanished process may still read, so later downloads use other
    // memory.
    let buffer = on_host.buffer().ok_or("no buffer")?;
    buffer.region().and_then(SharedMemory::of).ok_or("nobody else reads it")?.0.sharing().set_read_only();
    drop((buffer, on_host));
    for _ in 0..4 {
        assert_ne!(region(&gpu.download(gpu.upload(numbers(6.0)?)?)?)?.0, id);
    }
    assert_eq!(&peer.bytes()[..tensor.num_bytes()], tensor.bytes()?);
    // Small tensors use ordinary pinned memory.
    let small = gpu.download(gpu.upload(Tensor::vector(&[1.0f32; 16])?)?)?;
    let buffer = small.buffer().ok_or("no buffer")?;
    assert!(buffer.region().and_then(SharedMemory::of).is_none());
    assert_eq!(gpu.driver.races(), Vec::<String>::new());
    Ok(())
}
