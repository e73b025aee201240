//! The derive of `portolan::rpc::Schema`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, parse_quote};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    let name = &input.ident;
    let text = name.to_string();
    let krate = quote!(::portolan::rpc);
    let mut types = Vec::new();
    let parts = match &input.data {
        Data::Struct(data) => fields(&data.fields, &krate, &mut types),
        Data::Enum(data) => {
            let variants = data.variants.iter().map(|variant| {
                let name = variant.ident.to_string();
                let fields = fields(&variant.fields, &krate, &mut types);
                quote!(.text(#name) #fields .text("|"))
            });
            quote!(#(#variants)*)
        }
        Data::Union(data) => {
            return Err(Error::new_spanned(
                data.union_token,
                "a union does not travel: nobody can say what its bytes mean",
            ));
        }
    };
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#krate::Schema));
    }
    let (params, _, bounds) = generics.split_for_impl();
    let (_, ours, _) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #params #krate::Schema for #name #ours #bounds {
            const HASH: u64 = #krate::Hash::new().text(#text) #parts .finish();
            const MOVES: bool = false #(|| <#types as #krate::Schema>::MOVES)*;
        }
    })
}

/// Calls that add each field to the hash.
fn fields(fields: &Fields, krate: &TokenStream, types: &mut Vec<syn::Type>) -> TokenStream {
    let calls = fields.iter().map(|field| {
        let name = field
            .ident
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let ty = &field.ty;
        types.push(ty.clone());
        quote!(.text(#name).word(<#ty as #krate::Schema>::HASH))
    });
    quote!(#(#calls)*)
}
