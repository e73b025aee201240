//! Derives `portolan::rpc::Schema`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Attribute, Data, DeriveInput, Error, Fields, Meta, Token, parse_quote};

/// What `serde` then writes is not what the fields say.
const OTHERWISE: [&str; 15] = [
    "skip",
    "skip_serializing",
    "skip_serializing_if",
    "skip_deserializing",
    "with",
    "serialize_with",
    "deserialize_with",
    "from",
    "try_from",
    "into",
    "flatten",
    "untagged",
    "tag",
    "content",
    "other",
];

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    written_as_declared(&input.attrs)?;
    let name = &input.ident;
    let text = name.to_string();
    let krate = quote!(::portolan::rpc);
    let mut types = Vec::new();
    let parts = match &input.data {
        Data::Struct(data) => fields(&data.fields, &krate, &mut types)?,
        Data::Enum(data) => {
            let variants = data.variants.iter().map(|variant| {
                written_as_declared(&variant.attrs)?;
                let name = variant.ident.to_string();
                let fields = fields(&variant.fields, &krate, &mut types)?;
                Ok(quote!(.text(#name) #fields .text("|")))
            });
            let variants = variants.collect::<Result<Vec<_>, Error>>()?;
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

/// Refuses what changes the bytes of a type whose hash stays the same.
fn written_as_declared(attributes: &[Attribute]) -> Result<(), Error> {
    for attribute in attributes.iter().filter(|a| a.path().is_ident("serde")) {
        let parse = Punctuated::<Meta, Token![,]>::parse_terminated;
        for meta in attribute.parse_args_with(parse)? {
            if OTHERWISE.iter().any(|name| meta.path().is_ident(name)) {
                return Err(Error::new_spanned(
                    meta,
                    "with this `serde` writes something else than is declared here, which the \
                     hash would not show: implement `Schema` by hand, or declare what is written",
                ));
            }
        }
    }
    Ok(())
}

/// Calls that add each field to the hash.
fn fields(
    fields: &Fields,
    krate: &TokenStream,
    types: &mut Vec<syn::Type>,
) -> Result<TokenStream, Error> {
    let calls = fields.iter().map(|field| {
        written_as_declared(&field.attrs)?;
        let name = field
            .ident
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let ty = &field.ty;
        types.push(ty.clone());
        Ok(quote!(.text(#name).word(<#ty as #krate::Schema>::HASH)))
    });
    let calls = calls.collect::<Result<Vec<_>, Error>>()?;
    Ok(quote!(#(#calls)*))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_writes_otherwise_is_refused() {
        let refused: [DeriveInput; 8] = [
            parse_quote!(
                struct Order {
                    account: u32,
                    #[serde(skip)]
                    discount: u32,
                }
            ),
            parse_quote!(
                struct Order {
                    #[serde(default, skip_serializing_if = "none")]
                    at: u32,
                }
            ),
            parse_quote!(
                struct Order {
                    #[serde(with = "hex")]
                    account: u32,
                }
            ),
            parse_quote!(
                #[serde(from = "Old", into = "Old")]
                struct Order {
                    account: u32,
                }
            ),
            parse_quote!(
                #[serde(untagged)]
                enum Mode {
                    Slow(u8),
                    Fast(u16),
                }
            ),
            parse_quote!(
                enum Mode {
                    Slow,
                    #[serde(skip)]
                    Gone,
                    Fast,
                }
            ),
            parse_quote!(
                enum Mode {
                    Slow {
                        #[serde(flatten)]
                        by: u8,
                    },
                }
            ),
            parse_quote!(
                struct Order(#[serde(deserialize_with = "of")] u32);
            ),
        ];
        for input in refused {
            let why = expand(&input).unwrap_err().to_string();
            assert!(why.starts_with("with this `serde` writes"), "{why}");
        }
        let fine: [DeriveInput; 3] = [
            parse_quote!(
                #[serde(rename_all = "lowercase")]
                enum Mode {
                    #[serde(alias = "s")]
                    Slow,
                }
            ),
            parse_quote!(
                #[serde(transparent)]
                struct Account(u32);
            ),
            parse_quote!(
                struct Line<'a> {
                    #[serde(borrow, rename(serialize = "t"))]
                    text: &'a str,
                }
            ),
        ];
        for input in fine {
            assert!(expand(&input).is_ok(), "{:?}", input.ident);
        }
    }
}
