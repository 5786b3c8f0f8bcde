//! Products by cuBLASLt, which adds a bias and applies an activation while it writes them, if it is asked to.

use super::ways::Ways;
use super::workspace::Workspace;
use crate::engine::driver::{Epilogue, Product, StreamId};
use crate::engine::library;
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::sys;
use device::{Error, Result};
use graph::DType;
use rustc_hash::FxHashMap;
use std::ffi::{c_int, c_void};

/// cuBLASLt on one GPU, with what was prepared of each kind of product: `None` where it has no algorithm.
#[derive(Debug)]
pub(super) struct Light {
    handle: sys::cublasLtHandle_t,
    workspace: Option<Workspace>,
    known: FxHashMap<Kind, Option<(Prepared, Ways<Way>)>>,
}

// SAFETY: a handle, and descriptors, may be used by any thread, one at a time.
unsafe impl Send for Light {}

/// Shapes come and go: beyond so many the next starts anew.
const MOST_KNOWN: usize = 4096;

/// How many algorithms are asked for.
const ASKED: usize = 8;

/// The library takes it for granted that all that it is given begins at multiples of this.
const ALIGNMENT: u64 = 256;

/// What an algorithm is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    dtype: DType,
    tf32: bool,
    m: usize,
    n: usize,
    k: usize,
    flips: [bool; 2],
    has_bias: bool,
    relu: bool,
}

/// A kind of product as cuBLASLt knows it. It thinks in columns, and so computes the transposed product of the
/// transposed factors in turn: rows of a matrix as it lies are its columns, and `b` comes first.
#[derive(Debug)]
struct Prepared {
    description: Description,
    b: Layout,
    a: Layout,
    c: Layout,
}

/// How it may be computed.
#[derive(Debug)]
struct Way {
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// Bytes.
    workspace: usize,
}

/// Descriptors, each destroyed when it is dropped.
macro_rules! descriptors {
    ($($name:ident: $type:ident, $destroy:ident;)*) => {$(
        #[derive(Debug)]
        struct $name(sys::$type);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: nobody uses the descriptor any more.
                let _ = unsafe { sys::$destroy(self.0) };
            }
        }
    )*};
}

descriptors! {
    Description: cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy;
    Layout: cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy;
    Preference: cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy;
}

impl Light {
    /// In this thread's context, for a GPU of this architecture.
    pub(super) fn open(architecture: u32) -> Result<Light> {
        library::LIGHT_BLAS.check()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the new handle.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&raw mut handle) })?;
        Ok(Light { handle, workspace: Workspace::new(architecture), known: FxHashMap::default() })
    }

    /// Enqueues a product with what follows it, in the fastest way, if it may be tried in the stream. `false`, and nothing
    /// is enqueued, if the library has no way to do it, or of complex numbers, which are left to cuBLAS.
    pub(super) fn multiply(
        &mut self,
        product: &Product,
        stream: StreamId,
        trying: Option<StreamId>,
    ) -> Result<bool> {
        let bias = product.epilogue.as_ref().and_then(|epilogue| epilogue.bias);
        let places = [product.a, product.b, product.c, bias.unwrap_or(product.c)];
        let is_aligned = places.iter().all(|place| place.0 % ALIGNMENT == 0);
        if product.count != 1 || !is_aligned || product.dtype.is_complex() {
            return Ok(false);
        }
        let (handle, workspace) = (self.handle, self.workspace.as_ref());
        let kind = Kind::of(product);
        if !self.known.contains_key(&kind) {
            if self.known.len() >= MOST_KNOWN {
                self.known.clear();
            }
            let prepared = Prepared::new(handle, &kind, workspace.map_or(0, Workspace::bytes))?;
            self.known.insert(kind, prepared);
        }
        let Some(Some((prepared, ways))) = self.known.get_mut(&kind) else { return Ok(false) };
        ways.enqueue(
            trying,
            |_| true,
            |way| {
                let status = prepared.enqueue(handle, way, workspace, product, stream)?;
                match status.result() {
                    Ok(()) => Ok(true),
                    Err(error) if is_refusal(error) => Ok(false),
                    Err(error) => Err(failed("cublasLtMatmul", error)),
                }
            },
        )
    }
}

impl Drop for Light {
    fn drop(&mut self) {
        self.known.clear();
        // SAFETY: nobody uses the handle any more.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

impl Kind {
    fn of(product: &Product) -> Kind {
        let Product { dtype, tf32, m, n, k, flips, epilogue, .. } = *product;
        let Epilogue { bias, relu } = epilogue.unwrap_or(Epilogue { bias: None, relu: false });
        Kind { dtype, tf32, m, n, k, flips, has_bias: bias.is_some(), relu }
    }

    /// How elements are stored, and what they are multiplied in; `None` for those of other types.
    fn types(&self) -> Option<(sys::cudaDataType, sys::cublasComputeType_t)> {
        use sys::cublasComputeType_t::*;
        use sys::cudaDataType_t::*;
        Some(match self.dtype {
            DType::Float if self.tf32 => (CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
            DType::Float => (CUDA_R_32F, CUBLAS_COMPUTE_32F),
            DType::Half => (CUDA_R_16F, CUBLAS_COMPUTE_32F),
            DType::BFloat16 => (CUDA_R_16BF, CUBLAS_COMPUTE_32F),
            _ => return None,
        })
    }

    fn epilogue(&self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t::*;
        match (self.has_bias, self.relu) {
            (false, false) => CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => CUBLASLT_EPILOGUE_RELU,
            (true, false) => CUBLASLT_EPILOGUE_BIAS,
            (true, true) => CUBLASLT_EPILOGUE_RELU_BIAS,
        }
    }
}

impl Prepared {
    /// With the ways in which the library expects it to be the fastest; `None` if it has none.
    fn new(
        handle: sys::cublasLtHandle_t,
        kind: &Kind,
        workspace: usize,
    ) -> Result<Option<(Prepared, Ways<Way>)>> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let Some((dtype, compute)) = kind.types() else { return Ok(None) };
        let description = Description::new(compute)?;
        for (attribute, flip) in
            [(CUBLASLT_MATMUL_DESC_TRANSA, kind.flips[1]), (CUBLASLT_MATMUL_DESC_TRANSB, kind.flips[0])]
        {
            let operation = match flip {
                true => cublasOperation_t::CUBLAS_OP_T,
                false => cublasOperation_t::CUBLAS_OP_N,
            };
            description.set(attribute, &(operation as i32))?;
        }
        description.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &(kind.epilogue() as u32))?;
        let Kind { m, n, k, flips, .. } = *kind;
        let b = if flips[1] { Layout::new(dtype, k, n)? } else { Layout::new(dtype, n, k)? };
        let a = if flips[0] { Layout::new(dtype, m, k)? } else { Layout::new(dtype, k, m)? };
        let c = Layout::new(dtype, n, m)?;
        let preference = Preference::new(workspace)?;
        let mut found = [std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed(); ASKED];
        let mut count: c_int = 0;
        // SAFETY: all descriptors live; there is room for as many answers as are asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                description.0,
                b.0,
                a.0,
                c.0,
                c.0,
                preference.0,
                ASKED as c_int,
                found.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        match status.result() {
            Ok(()) => {}
            Err(error) if is_refusal(error) => return Ok(None),
            Err(error) => return Err(failed("cublasLtMatmulAlgoGetHeuristic", error)),
        }
        // SAFETY: the library has written as many answers as it says.
        let came = found.iter().take(usize::try_from(count).unwrap_or(0)).map(|f| unsafe { f.assume_init() });
        let ways = came
            .filter(|found| found.state.result().is_ok() && found.workspaceSize <= workspace)
            .map(|found| Way { algorithm: found.algo, workspace: found.workspaceSize })
            .collect();
        Ok(Ways::new(ways).map(|ways| (Prepared { description, b, a, c }, ways)))
    }

    /// Gives the call's status: one that is a refusal says that nothing was enqueued.
    fn enqueue(
        &self,
        handle: sys::cublasLtHandle_t,
        way: &Way,
        workspace: Option<&Workspace>,
        product: &Product,
        stream: StreamId,
    ) -> Result<sys::cublasStatus_t> {
        if let Some(bias) = product.epilogue.as_ref().and_then(|epilogue| epilogue.bias) {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            self.description.set(attribute, &bias.0)?;
        }
        let (one, zero) = (1f32, 0f32);
        let c = product.c.0 as *mut c_void;
        // SAFETY: the addresses are of matrices of these layouts, and of a bias of the product's columns, which live
        // until the stream has passed the product, as the workspace does, which is as large as the algorithm needs; the
        // scalars are of the type that all these products are scaled in.
        Ok(unsafe {
            sys::cublasLtMatmul(
                handle,
                self.description.0,
                (&raw const one).cast(),
                product.b.0 as *const c_void,
                self.b.0,
                product.a.0 as *const c_void,
                self.a.0,
                (&raw const zero).cast(),
                c,
                self.c.0,
                c,
                self.c.0,
                &raw const way.algorithm,
                workspace.map_or(std::ptr::null_mut(), Workspace::address),
                way.workspace,
                stream.0 as sys::cudaStream_t,
            )
        })
    }
}

impl Description {
    /// Of a product that is scaled in float32.
    fn new(compute: sys::cublasComputeType_t) -> Result<Description> {
        let mut description = std::ptr::null_mut();
        let scale = sys::cudaDataType_t::CUDA_R_32F;
        // SAFETY: writes the new descriptor's address.
        let status = unsafe { sys::cublasLtMatmulDescCreate(&raw mut description, compute, scale) };
        check("cublasLtMatmulDescCreate", status)?;
        Ok(Description(description))
    }

    /// `value` is of the type that NVIDIA's documents name for the attribute.
    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let (from, size) = ((&raw const *value).cast(), size_of::<T>());
        // SAFETY: the value is read, in its size, before the call returns.
        let status = unsafe { sys::cublasLtMatmulDescSetAttribute(self.0, attribute, from, size) };
        check("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Layout {
    /// Of a matrix whose columns follow each other without gaps.
    fn new(dtype: sys::cudaDataType, rows: usize, columns: usize) -> Result<Layout> {
        let mut layout = std::ptr::null_mut();
        let (rows, columns) = (rows as u64, columns as u64);
        // SAFETY: writes the new descriptor's address.
        let status =
            unsafe { sys::cublasLtMatrixLayoutCreate(&raw mut layout, dtype, rows, columns, rows as i64) };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Layout(layout))
    }
}

impl Preference {
    /// Of algorithms that need no more memory than this.
    fn new(workspace: usize) -> Result<Preference> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: writes the new descriptor's address.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&raw mut preference) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let preference = Preference(preference);
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = workspace as u64;
        // SAFETY: the number is read, in its size, before the call returns.
        let status = unsafe {
            let from = (&raw const bytes).cast();
            sys::cublasLtMatmulPreferenceSetAttribute(preference.0, attribute, from, size_of::<u64>())
        };
        check("cublasLtMatmulPreferenceSetAttribute", status)?;
        Ok(preference)
    }
}

/// Whether the library says that it does not do this, rather than that something went wrong.
fn is_refusal(error: CublasError) -> bool {
    use sys::cublasStatus_t::*;
    matches!(error.0, CUBLAS_STATUS_NOT_SUPPORTED | CUBLAS_STATUS_INVALID_VALUE | CUBLAS_STATUS_ARCH_MISMATCH)
}

fn check(call: &str, status: sys::cublasStatus_t) -> Result<()> {
    status.result().map_err(|error| failed(call, error))
}

fn failed(call: &str, error: CublasError) -> Error {
    Error::internal(format!("cuBLASLt: {call} failed: {:?}", error.0))
}
