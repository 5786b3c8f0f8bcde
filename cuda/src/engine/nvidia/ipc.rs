//! GPU memory that several processes of one machine map. The physical memory is freed when the last process has
//! unmapped it or ended.

use super::Nvidia;
use crate::engine::driver::{Address, IpcMemory};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use device::{Error, Result};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The kind of handle by which memory is shared: a file descriptor.
const KIND: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Allocates memory that other processes can map; returns `None` if there is not enough.
///
/// # Errors
/// `Unimplemented` if the GPU cannot export memory by descriptor, or if `bytes` is not a multiple of its
/// granularity.
pub(super) fn share(gpu: &Nvidia, bytes: usize) -> Result<Option<IpcMemory>> {
    let what = properties(gpu);
    if !can_export_descriptors(gpu)? || !bytes.is_multiple_of(granularity(gpu, &what)?) {
        let what = format!("GPU {} gives no {bytes} bytes to other processes", gpu.number);
        return Err(Error::unimplemented(what));
    }
    let mut memory = 0;
    // SAFETY: the call writes one handle and reads a complete description.
    match unsafe { sys::cuMemCreate(&raw mut memory, bytes, &raw const what, 0) } {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Ok(None),
        created => gpu.check("cuMemCreate", created.result())?,
    }
    let memory = MemoryHandle(memory);
    let mut descriptor: RawFd = -1;
    // SAFETY: a handle of this kind is a file descriptor, which the call writes and which has no other owner.
    let descriptor = unsafe {
        let exported =
            sys::cuMemExportToShareableHandle((&raw mut descriptor).cast::<c_void>(), memory.0, KIND, 0);
        gpu.check("cuMemExportToShareableHandle", exported.result())?;
        OwnedFd::from_raw_fd(descriptor)
    };
    Ok(Some(IpcMemory { address: map_handle(gpu, &memory, bytes)?, descriptor }))
}

/// Maps `bytes` bytes of memory of another process into this GPU's address space.
pub(super) fn map(gpu: &Nvidia, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address> {
    let mut memory = 0;
    let by = descriptor.as_raw_fd() as usize as *mut c_void;
    // SAFETY: a handle of this kind is a file descriptor, passed as a pointer; the call writes one handle.
    let imported = unsafe { sys::cuMemImportFromShareableHandle(&raw mut memory, by, KIND) };
    gpu.check("cuMemImportFromShareableHandle", imported.result())?;
    map_handle(gpu, &MemoryHandle(memory), bytes)
}

/// Unmaps memory and frees its addresses.
pub(super) fn unmap(address: Address, bytes: usize) {
    // SAFETY: the addresses come from `map_handle`, and no stream uses them (the contract of `Driver`).
    unsafe {
        let _ = sys::cuMemUnmap(address.0, bytes);
        let _ = sys::cuMemAddressFree(address.0, bytes);
    }
}

/// A handle of physical memory. The memory stays allocated after the handle is released, while it is mapped.
struct MemoryHandle(sys::CUmemGenericAllocationHandle);

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// Maps physical memory at newly reserved addresses, with access for this GPU.
fn map_handle(gpu: &Nvidia, memory: &MemoryHandle, bytes: usize) -> Result<Address> {
    let mut address = 0;
    // SAFETY: the call writes one address.
    let reserved = unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) };
    gpu.check("cuMemAddressReserve", reserved.result())?;
    // SAFETY: the addresses have just been reserved, and the handle is alive.
    let mapped = unsafe { sys::cuMemMap(address, bytes, 0, memory.0, 0) };
    let mapped = gpu.check("cuMemMap", mapped.result());
    let access = gpu.access();
    let placed = mapped.and_then(|()| {
        // SAFETY: the addresses are mapped; the call reads one description.
        let set = unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) };
        gpu.check("cuMemSetAccess", set.result())
    });
    match placed {
        Ok(()) => Ok(Address(address)),
        Err(error) => {
            unmap(Address(address), bytes);
            Err(error)
        }
    }
}

/// Returns the description of memory that can be exported by file descriptor.
fn properties(gpu: &Nvidia) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: KIND,
        location: gpu.location(),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns the granularity in bytes in which memory with the described properties can be allocated.
fn granularity(gpu: &Nvidia, what: &sys::CUmemAllocationProp) -> Result<usize> {
    let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut bytes = 0;
    // SAFETY: the call writes one number and reads one description.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, what, least) };
    gpu.check("cuMemGetAllocationGranularity", asked.result())?;
    Ok(bytes)
}

/// Returns whether the GPU can export memory by file descriptor.
fn can_export_descriptors(gpu: &Nvidia) -> Result<bool> {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as SUPPORTED;
    // SAFETY: the device comes from the driver.
    let asked: Result<c_int, DriverError> = unsafe { result::device::get_attribute(gpu.device, SUPPORTED) };
    Ok(gpu.check("cuDeviceGetAttribute", asked)? != 0)
}
