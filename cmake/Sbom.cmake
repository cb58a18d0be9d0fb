# The software bill of materials of a wheel: what the binaries contain of other projects, in the
# format CycloneDX and the folder of PEP 770. What they load at run time is in the wheel's metadata.

# cudarelu_contains(NAME VERSION LICENSE PURL): LICENSE is an expression of SPDX.
function(cudarelu_contains name version license purl)
  string(CONCAT component
    "    {\"type\": \"library\", \"name\": \"${name}\", \"version\": \"${version}\", "
    "\"licenses\": [{\"expression\": \"${license}\"}], \"purl\": \"${purl}@${version}\"}")
  set_property(GLOBAL APPEND PROPERTY cudarelu_components "${component}")
endfunction()

# cudarelu_install_sbom(): after all calls of cudarelu_contains().
function(cudarelu_install_sbom)
  get_property(components GLOBAL PROPERTY cudarelu_components)
  list(JOIN components ",\n" components)
  set(file ${PROJECT_BINARY_DIR}/cudarelu.cdx.json)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT [[
{
  "bomFormat": "CycloneDX",
  "specVersion": "1.6",
  "version": 1,
  "metadata": {
    "component": {
      "type": "library",
      "name": "cudarelu",
      "version": "@PROJECT_VERSION@",
      "purl": "pkg:pypi/cudarelu@@PROJECT_VERSION@"
    }
  },
  "components": [
@components@
  ]
}
]])
  install(FILES ${file} DESTINATION ${SKBUILD_METADATA_DIR}/sboms COMPONENT cudarelu)
endfunction()
